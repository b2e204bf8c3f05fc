"""The mailbox through which an app on a persistent node receives messages while it works on another one.

A stock node starts a process for each message: there is no mailbox, and an app can only reply. Without torch, since the
node imports this module.
"""

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from threading import Condition

from flwr.app import Message


class Mailbox:
    """Messages for the app of this process. They arrive in another thread than the app's."""

    def __init__(
        self,
        reply: Callable[[Message], None],
        keep: Callable[[str, bytes], None],
        recall: Callable[[str], bytes | None],
    ) -> None:
        self.reply = reply
        """Send the reply to a message from this mailbox."""
        self.keep = keep
        """Have the node keep bytes under a name, beyond the end of this process and of the run."""
        self.recall = recall
        """The bytes kept under a name."""
        self._messages: deque[Message] = deque()
        self._changed = Condition()

    def put(self, message: Message) -> None:
        """Append a message."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def put_back(self, message: Message) -> None:
        """Make a message the next one again."""
        with self._changed:
            self._messages.appendleft(message)

    def take(self, seconds: float | None = 0.0) -> Message | None:
        """The next message, or None if none arrives within `seconds` (None: wait forever)."""
        if not self._messages and seconds == 0.0:  # called between any two training steps: take no lock
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._messages, seconds)
            return self._messages.popleft() if self._messages else None


_mailbox: ContextVar[Mailbox | None] = ContextVar("mailbox", default=None)


def open_mailbox(mailbox: Mailbox | None) -> None:
    """Make this the mailbox of the apps that run in this thread."""
    _mailbox.set(mailbox)


def current_mailbox() -> Mailbox | None:
    """The mailbox of this thread's app; None on a stock node."""
    return _mailbox.get()
