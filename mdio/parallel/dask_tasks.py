"""Which Dask worker ran which item when, as the scheduler saw it."""

from __future__ import annotations

import time
from typing import Any

CLOCKS_S = 600.0
"""How far the clocks of client and workers may be apart."""


class TaskStream:
    """What distributed's task-stream plugin in the scheduler notes of one run.

    It only watches: whatever goes wrong with it leaves the run alone.

    `client`: a `distributed.Client`; the plugin is put into its scheduler unless it is there.
    `token`: what the run's tasks have in their keys.
    """

    def __init__(self, client: Any, token: str) -> None:
        self._client = client
        self.prefix = f"mdio-{token}-"
        """The keys of the run's tasks: this and the number of the item."""
        self._since = time.time() - CLOCKS_S
        self._fetch(count=1)  # the first call starts the plugin

    def _fetch(self, **window: Any) -> list[dict[str, Any]]:
        try:
            return list(self._client.get_task_stream(**window))
        except Exception:  # a diagnosis must not end what it looks at
            return []

    def tasks(self) -> list[dict[str, Any]]:
        """Return one record a task, by item.

        Returns list of dict: ``block`` (number of the item), ``worker`` (address), ``thread``,
        ``start_unix_s`` and ``stop_unix_s`` of the computation, ``transfer_s`` and
        ``deserialize_s`` before it.
        """
        found = []
        for seen in self._fetch(start=self._since):
            key = str(seen["key"])
            if not key.startswith(self.prefix):
                continue
            spent = {"compute": 0.0, "transfer": 0.0, "deserialize": 0.0}
            start = stop = None
            for part in seen["startstops"]:
                action = part["action"]
                spent[action] = spent.get(action, 0.0) + part["stop"] - part["start"]
                if action == "compute":
                    start, stop = part["start"], part["stop"]
            if start is not None:
                found.append(
                    {
                        "block": int(key.removeprefix(self.prefix)),
                        "worker": str(seen["worker"]),
                        "thread": int(seen["thread"]),
                        "start_unix_s": start,
                        "stop_unix_s": stop,
                        "transfer_s": spent["transfer"],
                        "deserialize_s": spent["deserialize"],
                    }
                )
        return sorted(found, key=lambda task: int(task["block"]))
