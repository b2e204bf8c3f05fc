"""The `[task]` table: what is trained and how it is judged. Torch is imported only when a task is really made."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import InvalidInput, unknown
from offbeat.experiment.named import NamedTable
from offbeat.experiment.tables import Table, checked
from offbeat.references import resolve

if TYPE_CHECKING:
    from offbeat.training.tasks import Direction, Task

TASKS = {
    "classification": "offbeat.training.tasks:Classification",
    "regression": "offbeat.training.tasks:Regression",
    "multi-label": "offbeat.training.tasks:MultiLabel",
    "sequence": "offbeat.training.tasks:TokenSequence",
}


class TaskTable(NamedTable):
    """What is trained and how it is judged. The settings of the task join in."""

    name: str = "classification"
    """classification, regression, multi-label, sequence, or your own as "module:Class" or "module:object"."""

    @property
    def is_default(self) -> bool:
        """Whether the task is the plain classification."""
        return self.name == "classification" and not self.others

    def check(self) -> None:
        if not self.is_default:
            _ = self.task

    @cached_property
    def task(self) -> "Task":
        """The task with its settings."""
        if ":" not in self.name and self.name not in TASKS:
            raise unknown("task", self.name, TASKS)
        from offbeat.training.tasks import Task

        thing: Any = resolve(TASKS.get(self.name, self.name))
        if isinstance(thing, Task) and not self.others:
            return thing
        if not (isinstance(thing, type) and issubclass(thing, Task)):
            raise InvalidInput(f"task.name = {self.name!r}: it is no subclass of offbeat.training.tasks.Task.")
        return checked(thing, "task", self.others)

    def direction(self, metric: str) -> "Direction":
        """In which direction a metric is better; InvalidInput if the task has no such metric."""
        if metric == "accuracy" and self.is_default:
            return "max"
        if metric not in self.task.directions:
            raise unknown(f"metric of the task {self.name!r},", metric, self.task.directions)
        return self.task.directions[metric]

    @property
    def target(self) -> str:
        """The metric that runs are compared by if nothing else is said."""
        return "accuracy" if self.is_default else self.task.target

    def resolved(self) -> Table:
        """All settings with their values; nothing where the task is the default one."""
        if self.is_default:
            return {}
        return {"name": self.name} | self.task.model_dump(exclude_none=True)
