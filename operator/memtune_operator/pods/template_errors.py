"""What is wrong with a job's template: one that is invalid, lacks a command, or conflicts with a run."""

from __future__ import annotations

from memtune.api import reasons


class TemplateError(ValueError):
    """An invalid template. ``reason`` is that of the job's Stalled condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CommandRequiredError(TemplateError):
    """The wrapped container has no command: the image's own is not visible from outside."""

    def __init__(self, container: str) -> None:
        message = (
            f"spec.template: container {container!r} sets no command, and the image's own cannot be seen from "
            'outside; add the line that starts the training, like command: ["torchrun", "train.py"]'
        )
        super().__init__(reasons.COMMAND_REQUIRED, message)


def conflict(where: str, problem: str, advice: str) -> TemplateError:
    """The error for a user's value that conflicts with a run."""
    return TemplateError(reasons.TEMPLATE_CONFLICT, f"spec.template.{where}: {problem}; {advice}")
