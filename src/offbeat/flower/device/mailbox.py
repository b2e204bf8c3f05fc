"""How an app hears of messages while it works on another one: only on a warm node, where its process lives on.

On a node that starts a process for each message there is no mailbox, and an app can only answer.
"""

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from threading import Condition

from flwr.app import Message


class Mailbox:
    """Messages for the app of this process. The app takes them in one thread; they come in another."""

    def __init__(
        self,
        answer: Callable[[Message], None],
        keep: Callable[[str, bytes], None],
        recall: Callable[[str], bytes | None],
    ) -> None:
        self.answer = answer
        """Send the answer to a message that was taken from here."""
        self.keep = keep
        """Have the node keep something under a name, also when this process or the whole run has ended."""
        self.recall = recall
        """What was kept under a name."""
        self._messages: deque[Message] = deque()
        self._changed = Condition()

    def put(self, message: Message) -> None:
        """A message has come."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def put_back(self, message: Message) -> None:
        """Have it be the next one again."""
        with self._changed:
            self._messages.appendleft(message)

    def take(self, seconds: float | None = 0.0) -> Message | None:
        """The next message, waiting so long for it; None if there is none (or forever, if no seconds are given)."""
        if not self._messages and seconds == 0.0:  # asked between all steps of training, so cheap
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._messages, seconds)
            return self._messages.popleft() if self._messages else None


_mailbox: ContextVar[Mailbox | None] = ContextVar("mailbox", default=None)


def open_mailbox(mailbox: Mailbox | None) -> None:
    """Make this the mailbox of the apps that run in this thread."""
    _mailbox.set(mailbox)


def current_mailbox() -> Mailbox | None:
    """The mailbox of this thread's app; None on a node that starts a process for each message."""
    return _mailbox.get()
