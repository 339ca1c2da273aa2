"""The instances behind a replayed log: membership, health, prefix indexes and transfers, as the live router's events
changed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from results.records.instance_events import InstanceEvent
from results.records.router_spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.cluster import Cluster, Member
from runners.router.prefix_index import PrefixIndex
from runners.router.transfer.move_rules import Admission, MoveRules


class LoggedIndex:
    """One instance's index: rebuilt, or what the log says it held."""

    def __init__(self, block_tokens: int, capacity_tokens: int | None, *, by_events: bool) -> None:
        """`by_events`: it holds what the engine's KV events report, not what was sent there."""
        self.block_tokens = block_tokens
        capacity = None if capacity_tokens is None else max(1, capacity_tokens // block_tokens)
        self._sent = PrefixIndex(block_tokens, capacity)
        self._reported: set[int] | None = set() if by_events else None
        self.logged_tokens: int | None = None
        """Not None = what is answered."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._sent if self._reported is None else self._reported)

    def count_matching(self, keys: Sequence[int]) -> int:
        if self.logged_tokens is not None:
            return self.logged_tokens
        if self._reported is None:
            return self._sent.count_matching(keys)
        matching = next((index for index, key in enumerate(keys) if key not in self._reported), len(keys))
        return matching * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        if self._reported is None:
            self._sent.insert_keys(keys)

    def store_blocks(self, keys: Sequence[int]) -> None:
        """The engine reported these blocks, or was pre-warmed with a prompt of them."""
        if self._reported is None:
            self._sent.insert_keys(keys)
        else:
            self._reported.update(keys)

    def remove_blocks(self, keys: Sequence[int]) -> None:
        if self._reported is not None:
            self._reported.difference_update(keys)

    def clear(self) -> None:
        self._sent.clear()
        if self._reported is not None:
            self._reported.clear()


class LoggedInstances:
    """Changes a cluster, its indexes and its rules of transfers, event by event.

    An event that makes no sense is passed over: one before it is missing, which the next pick shows.
    """

    def __init__(
        self, cluster: Cluster, rules: TransferRules, now_s: Callable[[], float], block_tokens: int, *, by_events: bool
    ) -> None:
        self.indexes: dict[str, LoggedIndex] = {}
        self._cluster = cluster
        self._specs: dict[str, InstanceSpec] = {}
        self.rules = MoveRules(self._specs, rules, now_s)
        self._admissions: dict[int, Admission] = {}
        """Transfers that were admitted, by the live router's numbers."""
        self._block_tokens = block_tokens
        self._by_events = by_events

    def add_instance(self, member: Member, transfer: KvEndpoint | None = None) -> None:
        self._cluster.add_member(member)
        self._make_index(member.instance, member.kv_capacity_tokens)
        self._specs[member.instance] = InstanceSpec(member.instance, "", member.role, transfer=transfer)

    def remove_instance(self, instance: str) -> None:
        self._cluster.remove_instance(instance)
        self.rules.remove_instance(instance)
        del self.indexes[instance], self._specs[instance]

    def apply_event(self, event: InstanceEvent) -> None:
        if event.transfer:
            self._apply_to_transfer(event)
        elif event.what == "added" and event.instance not in self.indexes:
            endpoint = KvEndpoint(event.transport, event.kv_role, event.bootstrap) if event.transport else None
            self.add_instance(
                Member(event.instance, "", event.role, event.kv_capacity_tokens, event.block_tokens), endpoint
            )
        elif event.instance in self.indexes:
            self._apply_to_instance(event)

    def _make_index(self, instance: str, capacity_tokens: int | None) -> None:
        self.indexes[instance] = LoggedIndex(self._block_tokens, capacity_tokens, by_events=self._by_events)

    def _apply_to_instance(self, event: InstanceEvent) -> None:
        name, cluster = event.instance, self._cluster
        match event.what:
            case "removed":
                self.remove_instance(name)
            case "available" | "unavailable":
                cluster.set_available(name, event.what == "available", event.why)
            case "draining":
                cluster.drain_instance(name)
            case "resumed":
                cluster.drain_instance(name)  # also where that event is missing: only a drain can end
                cluster.add_member(Member(name))
            case "paused":
                cluster.pause_instance(name, event.pause_s)
            case "capacity":
                cluster.set_capacity(name, event.kv_capacity_tokens)
                self._make_index(name, event.kv_capacity_tokens)  # as the live router does, which starts a new one
            case "recovered":
                self.rules.recover_instance(name)
            case _:
                self._apply_to_index(event)

    def _apply_to_index(self, event: InstanceEvent) -> None:
        index = self.indexes[event.instance]
        match event.what:
            case "blocks_stored":
                index.store_blocks(event.keys)
            case "blocks_removed":
                index.remove_blocks(event.keys)
            case "blocks_cleared":
                index.clear()
            case "lost":
                index.clear()
                self._cluster.bindings.release_instance(event.instance)

    def _apply_to_transfer(self, event: InstanceEvent) -> None:
        if event.what == "transfer_admitted":
            admission = self.rules.admit_transfer(event.instance, event.target, event.purpose)
            self._admissions[event.transfer] = admission
            return
        logged = self._admissions.get(event.transfer)
        if logged is None:
            return
        if event.what == "transfer_finished":
            self.rules.finish_transfer(logged)
        else:
            why = event.why if event.what == "transfer_failed" else None
            self.rules.count_end(logged, succeeded=event.what == "transfer_succeeded", why=why)
