"""The monitor's actions, each with keys, a label for the key bar and the command palette, and help text."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from textual.binding import Binding

Group = Literal["replay", "look", "steer", "app"]
GROUP_NAMES: dict[Group, str] = {"look": "View", "steer": "Steer the search", "app": "Monitor"}


class Action(Struct, frozen=True):
    """An action that a key triggers.

    ``hint`` is the action's rank in the key bar, or 0 if the key bar omits it. Help lists each group's actions in
    the order of ``ACTIONS``.

    ``palette`` is False for an action that makes sense only as a key.
    """

    name: str
    keys: str
    label: str
    help: str
    group: Group
    hint: int = 0
    palette: bool = True

    @property
    def shown_key(self) -> str:
        return KEY_NAMES.get(first := self.keys.split(",")[0], first)

    @property
    def short_label(self) -> str:
        """The label for a key bar without room for full labels."""
        return SHORT_LABELS.get(self.name, self.label)

    @property
    def command(self) -> str:
        """The action string for Textual, which names a method of the main screen, of ``Steering``, or of the app."""
        if self.group == "steer":
            return f"steer('{self.name}')"
        return self.name if self.group == "look" else f"app.{self.name}"


KEY_NAMES = {
    "slash": "/",
    "question_mark": "?",
    "plus": "+",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "ctrl+b": "^b",
    "ctrl+f": "^f",
    "ctrl+l": "^l",
    "ctrl+p": "^p",
    "ctrl+z": "^z",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "asterisk": "*",
    "dollar_sign": "$",
}

SHORT_LABELS = {
    "next_match(-1)": "prev",
    "follow": "follow",
    "seed_idea": "idea",
    "edit": "edit",
    "seed_kernel": "kernel",
    "pause_search": "pause",
    "start_engine": "resume",
}

ACTIONS: tuple[Action, ...] = (
    Action("open_detail", "enter", "open", "Open the selected kernel or idea in the detail pane", "look", 1, False),
    Action("back", "escape", "back", "Leave the search, zoom, pane or filter, or clear the marks", "look", 0, False),
    Action("jump_best", "B", "best", "Go to the best kernel of this problem", "look"),
    Action("tab(1)", "right_square_bracket", "next tab", "Show the next tab of the detail pane", "look"),
    Action("tab(-1)", "left_square_bracket", "previous tab", "Show the previous tab of the detail pane", "look"),
    Action("diff", "D", "diff", "Show the diff against the parent, best or marked kernel in turn", "look", 11),
    Action("calls", "v", "calls", "Show the node's model calls; press again for whole prompts", "look", 13),
    Action("spend", "dollar_sign", "spend", "Show model costs by model, problem, round and idea", "look"),
    Action("filter", "slash", "filter", "Filter the tree, or search the focused detail or log pane", "look", 6),
    Action("next_match(1)", "n", "next", "Go to the next match", "look", 0, False),
    Action("next_match(-1)", "N", "previous", "Go to the previous match", "look", 0, False),
    Action("follow", "F", "follow best", "Keep the cursor on the newest best kernel", "look", 10),
    Action("lineage", "t", "lineage", "Show the tree by round or by lineage", "look", 9),
    Action("sort", "o", "sort", "Sort by creation order, speedup, time or age", "look"),
    Action("reverse_sort", "O", "reverse sort", "Reverse the sort order", "look"),
    Action("zoom", "plus", "zoom", "Zoom the focused pane; press again to restore it", "look"),
    Action("mark", "m", "mark", "Mark the kernel to compare; diffs use the last marked kernel", "look"),
    Action("compare", "c", "compare", "Compare the marked kernels, or the selected and the best kernel", "look"),
    Action("copy", "y", "copy", "Copy the kernel's source to your clipboard (OSC 52)", "look"),
    Action("copy_id", "Y", "copy id", "Copy the node's id to your clipboard (OSC 52)", "look"),
    Action("hold", "p", "hold display", "Freeze the display; the search continues", "look"),
    Action("pane(1)", "1", "tree", "Focus the tree", "look", 0, False),
    Action("pane(2)", "2", "problems", "Focus the problems", "look", 0, False),
    Action("pane(3)", "3", "devices", "Focus the devices", "look", 0, False),
    Action("pane(4)", "4", "detail", "Focus the detail pane", "look", 0, False),
    Action("pane(5)", "5", "log", "Focus the log", "look", 0, False),
    Action("pane(6)", "6", "leaders", "Focus the leaders", "look", 0, False),
    Action("pane(7)", "7", "best kernel", "Focus the source of the problem's best kernel", "look", 0, False),
    Action("pane(8)", "8", "charts", "Focus the charts of speedup, devices and spending", "look"),
    Action("seed_idea", "i", "seed idea", "Seed an idea that starts from the selected kernel", "steer", 2),
    Action("edit", "e", "edit a copy", "Edit a copy of the kernel in $EDITOR, or write an idea's kernel", "steer", 3),
    Action("prune", "d", "prune", "Prune the branch, or restore a pruned branch", "steer", 4),
    Action("pin", "b", "pin", "Pin the branch, so that every round selects it, or unpin it", "steer", 8),
    Action("seed_kernel", "a", "seed kernel", "Seed a kernel from a file, by pasting, or in $EDITOR", "steer", 5),
    Action("reply", "I", "reply", "Answer waiting prompts by hand", "steer"),
    Action("undo", "z", "undo", "Undo the last request", "steer", 12),
    Action("redo", "Z", "redo", "Redo what you undid", "steer"),
    Action("pause_search", "P", "pause search", "Pause or unpause the search", "steer", 7),
    Action("retry", "r", "judge again", "Check and time the kernel again", "steer"),
    Action("budget", "M", "budget", "Change the limits on minutes, rounds, dollars, tokens and calls", "steer"),
    Action("stop_after_round", "S", "stop after round", "Stop after the running rounds, or cancel that stop", "steer"),
    Action("stop", "Q", "stop search", "Stop the search now", "steer"),
    Action("start_engine", "R", "resume engine", "Start the engine of a stopped session", "steer"),
    Action("detach", "q", "detach", "Close the monitor; a running search continues", "app", 15),
    Action("help", "question_mark,f1", "help", "Show help for the focused pane", "app", 14),
    Action("command_palette", "ctrl+p", "palette", "Find an action by name", "app", 0, False),
    Action("redraw", "ctrl+l", "redraw", "Redraw a garbled screen", "app"),
    Action("alerts", "A", "alerts", "Choose how to send alerts: bell, OSC 9, command or webhook", "app"),
    Action("theme", "T", "theme", "Choose a theme: dark, light or ANSI", "app"),
    Action("screenshot", "f8", "SVG", "Save the screen as SVG", "app"),
    Action("suspend_process", "ctrl+z", "suspend", "Suspend the monitor; type fg in the shell to return", "app"),
)  # fmt: skip


REPLAY_ACTIONS: tuple[Action, ...] = (
    Action("replay_pause", "space", "pause/play", "Pause or play the replay", "replay"),
    Action("replay_seek(-0.02)", "comma", "back", "Go back by 2% of the recording", "replay"),
    Action("replay_seek(0.02)", "full_stop", "forward", "Go forward by 2% of the recording", "replay"),
    Action("replay_speed(-1)", "less_than_sign", "slower", "Play slower", "replay"),
    Action("replay_speed(1)", "greater_than_sign", "faster", "Play faster", "replay"),
    Action("replay_seek(-1)", "0", "restart", "Play from the beginning", "replay"),
)


def bindings() -> list[Binding]:
    return [Binding(action.keys, action.command, action.label, show=False) for action in ACTIONS]
