"""Why a network has its way, or has none: what `svc-routes show` prints."""

from enum import Enum


class Reason(Enum):
    """The name and the sentence of each reason. `docs/routes.md` says what to do about those without a way."""

    DIRECT = "via the address of the node, which is on a connected subnet"
    TUNNEL = "through the tunnel to the node"
    OWN = "a block of this node: packets to addresses that no pod has end here"
    OWN_SINGLE = "a block of this node, with a single address: it needs no blackhole"
    LOCAL = "borrowed by this node: its pod has a route of its own"
    PENDING = "the affinity of the node is not confirmed yet, or is being released"
    DISPUTED = "several nodes claim the block, and the block names none of them"
    LOAD_BALANCER = "the pool is for load balancers: no node has its addresses"
    NO_NODE = "the datastore has no Node of this name"
    NO_ADDRESS = "the node has no address of this IP version"
    SAME_ADDRESS = "the node has the address of this node"
    NOT_CONNECTED = "the node is on another subnet, and the pool has no tunnel: the routers of the network must know the way"
    NO_POOL = "the block is in no pool, and its node is on another subnet"
    TUNNELS_OFF = "the pool needs a tunnel, and tunnels are turned off here"
    NO_OWN_TUNNEL = "this node has no tunnel yet: its address or its device is missing"
    NO_PEER_TUNNEL = "the node has not announced the address of its tunnel"
    FOREIGN = "another program has a route to the network, which stays"
    REFUSED = "the kernel refuses the route"
    NOT_YET = "the route is not in the kernel yet"
