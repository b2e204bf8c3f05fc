"""The `[task]` table: what is trained and how it is judged. Torch is imported only when a task is really made."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, model_validator

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.references import resolve
from offbeat.core.settings import Settings
from offbeat.settings.tables import Table, checked

if TYPE_CHECKING:
    from offbeat.device.tasks import Direction, Task


class TaskTable(Settings):
    """What is trained and how it is judged. The settings of the task join in."""

    model_config = ConfigDict(extra="allow")
    name: str = "classification"
    """classification, regression, multi-label, sequence, or your own as "module:Class" or "module:object"."""

    @property
    def others(self) -> Table:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _from_object(cls, given: Any) -> Any:
        """A task object from Python is its class by name and its settings."""
        if isinstance(given, Settings) and not isinstance(given, TaskTable):
            return task_table(given)
        return given

    @model_validator(mode="after")
    def _check(self) -> "TaskTable":
        if self.name != "classification" or self.others:
            _ = self.task
        return self

    @cached_property
    def task(self) -> "Task":
        from offbeat.device.tasks import TASKS, Task

        thing: Any = resolve(self.name) if ":" in self.name else TASKS.get(self.name)
        if thing is None:
            raise unknown("task", self.name, TASKS)
        if isinstance(thing, Task) and not self.others:
            return thing
        if not (isinstance(thing, type) and issubclass(thing, Task)):
            raise InvalidInput(f"task.name = {self.name!r}: it is no subclass of offbeat.device.tasks.Task.")
        return checked(thing, "task", self.others)

    def direction(self, metric: str) -> "Direction":
        """In which direction a metric is better; InvalidInput if the task has no such metric."""
        if metric == "accuracy" and self.name == "classification" and not self.others:
            return "max"
        if metric not in self.task.directions:
            raise unknown(f"metric of the task {self.name!r},", metric, self.task.directions)
        return self.task.directions[metric]

    @property
    def target(self) -> str:
        """The metric that runs are compared by if nothing else is said."""
        return "accuracy" if self.name == "classification" and not self.others else self.task.target

    def resolved(self) -> Table:
        """All settings with their values; nothing where the task is the default one."""
        if self.name == "classification" and not self.others:
            return {}
        return {"name": self.name} | self.task.model_dump(exclude_none=True)


def task_table(task: Settings) -> Table:
    """The table of a task object."""
    from offbeat.device.tasks import TASKS

    kind = type(task)
    name = next((name for name, known in TASKS.items() if known is kind), f"{kind.__module__}:{kind.__qualname__}")
    return {"name": name} | task.model_dump(exclude_none=True)
