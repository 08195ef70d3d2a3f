"""Messages between parts of the monitor, so that a pane need not import its screen."""

from __future__ import annotations

from textual import events
from textual.message import Message

from tui.view.row import Row


class FeedArrived(Message):
    """The feed's thread has read new events."""


class InputHandled(Message):
    """A widget has handled a key or pasted text. ``again`` is true once the widget has also handled the messages that
    the key posted.
    """

    def __init__(self, handled: events.Key | events.Paste, *, again: bool = False) -> None:
        super().__init__()
        self.input = handled
        self.again = again


class NodeHighlighted(Message):
    """The tree's cursor has moved to another node. ``by_hand`` is true if the user moved it."""

    def __init__(self, row: Row | None, by_hand: bool) -> None:
        super().__init__()
        self.row = row
        self.by_hand = by_hand

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NodeHighlighted)


class NodeOpened(Message):
    """The user double-clicked a row of the tree."""


class RowsReshaped(Message):
    """The width of the tree's rows has changed."""


class FilterEdited(Message):
    """The text of the tree's filter is now ``text``. ``dropped``: whether the user pressed esc to clear the filter."""

    def __init__(self, text: str, *, dropped: bool = False) -> None:
        super().__init__()
        self.text = text
        self.dropped = dropped


class TitleClicked(Message):
    """The user clicked column ``x`` of the title of pane ``number``."""

    def __init__(self, number: int, x: int) -> None:
        super().__init__()
        self.number = number
        self.x = x
