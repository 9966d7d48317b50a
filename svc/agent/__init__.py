"""The resident agent: its socket, admission queue, workers and periodic tasks."""

from svc.lazy_modules import postpone

postpone("inspect")  # `dataclasses`, which orjson imports, would import it: 0.7 MiB
