"""Progress of commands, as the Python interface shows it too."""

from offbeat.running.progress import bars, cluster_line, messages, note, watched_bar, watched_bars

__all__ = ["bars", "cluster_line", "messages", "note", "watched_bar", "watched_bars"]
