"""Every action of the monitor, named once: its keys, what the key bar and the palette call it, and what help says."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from textual.binding import Binding

Group = Literal["replay", "look", "steer", "app"]
GROUP_NAMES: dict[Group, str] = {"look": "Look", "steer": "Steer the search", "app": "The monitor"}


class Action(Struct, frozen=True):
    """``name``: the method ``action_NAME`` of the monitor's screen (of the app, for a replay's).

    ``hint``: its rank in the key bar, 0 for not there. Help shows a group in this order, which is that of use.

    ``palette`` is False for keys that only make sense as keys.
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


KEY_NAMES = {
    "slash": "/",
    "question_mark": "?",
    "plus": "+",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "ctrl+p": "^p",
    "ctrl+z": "^z",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "asterisk": "*",
    "dollar_sign": "$",
}

ACTIONS: tuple[Action, ...] = (
    Action(
        "open_detail", "enter", "open", "Open the selected kernel or idea in the detail pane", "look", 1, palette=False
    ),
    Action("back", "escape", "back", "Leave zoom, then the filter, then go back to the tree", "look", palette=False),
    Action("jump_best", "B", "best", "Go to the best kernel of this problem", "look"),
    Action("tab(1)", "right_square_bracket", "next tab", "Show the next tab of the detail", "look"),
    Action("tab(-1)", "left_square_bracket", "previous tab", "Show the previous tab of the detail", "look"),
    Action("diff", "D", "diff", "Diff to the parent; again: to the best, to the marked kernel", "look", 11),
    Action("calls", "v", "calls", "The calls that wrote it; again: with whole prompts", "look", 13),
    Action("spend", "dollar_sign", "spend", "What models have cost, live: by model, round and idea", "look"),
    Action("filter", "slash", "filter", "Filter the tree", "look", 8),
    Action("next_match(1)", "n", "next", "Go to the next match of the filter", "look", palette=False),
    Action("next_match(-1)", "N", "previous", "Go to the previous match of the filter", "look", palette=False),
    Action("follow", "F", "follow best", "Keep the cursor on the newest best kernel", "look", 10),
    Action("lineage", "t", "lineage", "Show the tree by round or by lineage", "look", 9),
    Action("sort", "o", "sort", "Sort by order written, speedup, time, age", "look"),
    Action("reverse_sort", "O", "reverse sort", "Reverse the order", "look"),
    Action("zoom", "plus", "zoom", "Zoom the focused pane, or back", "look"),
    Action("mark", "m", "mark", "Mark the kernel for a comparison; diffs take the last one marked", "look"),
    Action("compare", "c", "compare", "Marked kernels side by side; else the selected and the best", "look"),
    Action("copy", "y", "copy", "Copy the kernel's source to your clipboard (OSC 52)", "look"),
    Action("copy_id", "Y", "copy id", "Copy the node's id to your clipboard (OSC 52)", "look"),
    Action("hold", "p", "hold display", "Hold the display still; the search goes on", "look"),
    Action("pane(1)", "1", "tree", "Focus the tree", "look", palette=False),
    Action("pane(2)", "2", "problems", "Focus the scoreboard", "look", palette=False),
    Action("pane(3)", "3", "devices", "Focus the devices", "look", palette=False),
    Action("pane(4)", "4", "detail", "Focus the detail", "look", palette=False),
    Action("pane(5)", "5", "log", "Focus the log", "look", palette=False),
    Action("pane(6)", "6", "leaders", "Focus the leaderboard", "look", palette=False),
    Action("pane(7)", "7", "best kernel", "Focus the source of the problem's best kernel", "look", palette=False),
    Action("seed_idea", "i", "seed idea", "Seed an idea under the selected kernel", "steer", 2),
    Action(
        "edit", "e", "edit a copy", "Edit a copy in $EDITOR; saved, it is a child. On an idea: write for it", "steer", 3
    ),
    Action("prune", "d", "prune", "Prune the branch; on a pruned node: restore it", "steer", 4),
    Action("pin", "b", "pin", "Pin the branch: always carried on; again: unpin", "steer", 5),
    Action("seed_kernel", "a", "seed kernel", "Seed a kernel from a file, by pasting, or in $EDITOR", "steer", 6),
    Action("reply", "I", "reply", "Answer prompts that wait for a reply by hand", "steer"),
    Action("undo", "z", "undo", "Undo the last command", "steer", 12),
    Action("redo", "Z", "redo", "Redo what was undone", "steer"),
    Action("pause_search", "P", "pause search", "Pause or resume the search", "steer", 7),
    Action("retry", "r", "judge again", "Judge and time the kernel again", "steer"),
    Action("budget", "M", "budget", "Change minutes, rounds, dollars, tokens and calls", "steer"),
    Action("stop_after_round", "S", "stop after round", "Stop the search after the running rounds", "steer"),
    Action("stop", "Q", "stop search", "Stop the search now", "steer"),
    Action("start_engine", "R", "resume engine", "Start the engine of a dead or stopped session again", "steer"),
    Action("detach", "q", "detach", "Detach from the session; a search that runs goes on", "app", 15),
    Action("help", "question_mark", "help", "Help for the focused pane", "app", 14),
    Action("command_palette", "ctrl+p", "palette", "Every action by name", "app", palette=False),
    Action("alerts", "A", "alerts", "How news reaches you: bell, OSC 9, a command, a webhook", "app"),
    Action("theme", "T", "theme", "Next theme: dark, light, ANSI", "app"),
    Action("screenshot", "f8", "SVG", "Save the screen as SVG", "app"),
    Action("suspend", "ctrl+z", "suspend", "Suspend the monitor to the shell; fg brings it back", "app"),
)


REPLAY_ACTIONS: tuple[Action, ...] = (
    Action("app.replay_pause", "space", "hold/go on", "Hold the replay, or let it go on", "replay"),
    Action("app.replay_seek(-0.02)", "comma", "back", "Go back by a fiftieth of the recording", "replay"),
    Action("app.replay_seek(0.02)", "full_stop", "forward", "Go forward by a fiftieth of the recording", "replay"),
    Action("app.replay_speed(-1)", "less_than_sign", "slower", "Play slower", "replay"),
    Action("app.replay_speed(1)", "greater_than_sign", "faster", "Play faster", "replay"),
    Action("app.replay_seek(-1)", "0", "begin", "Begin again", "replay"),
)


def bindings() -> list[Binding]:
    return [Binding(action.keys, action.name, action.label, show=False) for action in ACTIONS]
