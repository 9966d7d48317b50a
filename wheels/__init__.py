"""Scripts of packagers: the wheels of svc."""
