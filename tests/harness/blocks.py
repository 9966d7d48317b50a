"""A new block, and the same block as other clients read it."""

import json
from datetime import datetime, timezone

from svc._core.cidr import Cidr
from svc.ipam import blocks
from svc.model.ipam import Block

NOW = datetime(2026, 11, 20, 18, 3, 21, 779_619, timezone.utc)
CIDR = Cidr("10.65.0.64/30")


def new(cidr: Cidr = CIDR, sequence: int = 1000) -> Block:
    block = blocks.new_block(cidr, "host:node1", NOW)
    block.sequence = sequence
    return block


def write(block: Block) -> Block:
    """Return the block as other clients read it after a write, which changes its sequence number."""
    block.sequence += 1
    return Block.from_json(json.loads(json.dumps(block.to_json())))
