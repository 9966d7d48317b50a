"""UIDs of new resources."""

import uuid

from svc.model.resource import new_uid


def test_uids_are_random_and_of_version_4() -> None:
    uids = [new_uid() for _ in range(200)]
    assert len(set(uids)) == len(uids)
    for uid in uids:
        parsed = uuid.UUID(uid)
        assert (str(parsed), parsed.version, parsed.variant) == (uid, 4, uuid.RFC_4122)
