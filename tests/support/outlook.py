"""Progress of running actions, as a pool reports it, without a pool."""


class Outlook:
    """Reports a status per method name, and the same earlier duration for every action."""

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
