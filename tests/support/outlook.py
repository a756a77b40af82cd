"""A pool's word on actions under way, without a pool."""


class Outlook:
    """Says how far methods are, by their names, and that each took so many seconds before."""

    def __init__(self, statuses, seconds, jobs=1, selected=(), events=()):
        self.jobs = jobs
        self.selected = selected
        self.events = events
        self._statuses = statuses
        self._seconds = seconds

    def find_status(self, action):
        return self._statuses.get(action.method)

    def recall_seconds(self, action):
        return self._seconds
