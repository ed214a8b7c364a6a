"""Grouping of calls into operators, such that every cut between operators is legal.

    1. the calls within one call of a leaf module              linear1: [reshape, linear]
    2. a value that is written in place: all calls from the one
       that makes it to the last write, with its readers       [batch_norm, relu_]
    3. a call that only views its input, with the call that
       makes the input or the one that reads the view          [mean, view]
    4. calls that would form a cycle otherwise

Operators run in the order of the program as far as (3) allows; random calls always keep their order, because they draw
from one generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import fx

from ropewalk.pipeline.topological import topological_order
from ropewalk.pipeline.tracing.aliasing import ObservedValue
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind
from ropewalk.pipeline.tracing.marks import CUT_HERE


def group(captured: Captured, seen: Mapping[fx.Node, ObservedValue]) -> list[list[fx.Node]]:
    """Return the calls of each operator in program order, and the operators in the order they run."""
    return _Grouping(captured, seen).groups()


class _Grouping:
    """Sets of calls that are joined until every cut between them is legal."""

    def __init__(self, captured: Captured, seen: Mapping[fx.Node, ObservedValue]) -> None:
        self._captured = captured
        self._seen = seen
        self._calls = list(captured.calls())
        self._position = {node: index for index, node in enumerate(self._calls)}
        self._set_of = {node: [node] for node in self._calls}

    def groups(self) -> list[list[fx.Node]]:
        self._join_calls_of_modules()
        self._join_written()
        self._join_circles()
        for node in reversed(self._calls):
            self._join_number(node)
        for root in self._roots():
            self._join_constant(root)
        for root in self._roots():
            self._join_end(root)
        if not self._captured.keeps_modules:
            for root in self._roots():
                self._join_view(root)
        self._join_circles()
        return self._in_order()

    # --- sets ---------------------------------------------------------------------------------------------------------

    def _find(self, node: fx.Node) -> fx.Node:
        """Return the first call of the set that contains a call; it represents the set."""
        return self._set_of[node][0]

    def _members(self, node: fx.Node) -> list[fx.Node]:
        return self._set_of[node]

    def _join(self, nodes: Iterable[fx.Node]) -> None:
        """Join the sets of these calls into one."""
        roots = {self._find(node) for node in nodes}
        if len(roots) > 1:
            joined = sorted((node for root in roots for node in self._set_of[root]), key=self._position.__getitem__)
            self._set_of.update(dict.fromkeys(joined, joined))

    def _roots(self) -> list[fx.Node]:
        return list(dict.fromkeys(map(self._find, self._calls)))

    # --- 1 and 2 ------------------------------------------------------------------------------------------------------

    def _join_calls_of_modules(self) -> None:
        calls: dict[str, list[fx.Node]] = {}
        for node in self._calls:
            if (call := self._captured.sites[node].call) is not None:
                calls.setdefault(call, []).append(node)
        for nodes in calls.values():
            self._join(nodes)

    def _join_written(self) -> None:
        statistics = self._statistics()
        last_write: dict[int, int] = {}
        for node in self._calls:
            for storage in self._seen[node].written - statistics:
                last_write[storage] = self._position[node]
        for storage, last in last_write.items():
            holders = [node for node in self._seen if storage in self._seen[node].storages]
            users = {reader for node in holders for reader in node.users}
            concerned = [*holders, *users]
            self._join(node for node in concerned if node in self._position and self._position[node] <= last)

    def _statistics(self) -> frozenset[int]:
        """Return the running statistics: batch normalisations that share them may still be in different stages."""
        names = (".running_mean", ".running_var", ".num_batches_tracked")
        return frozenset(
            storage
            for node, source in self._captured.sources.items()
            if source.kind is PlaceholderKind.BUFFER and f".{source.name}".endswith(names)
            for storage in self._seen[node].storages
        )

    # --- 3 ------------------------------------------------------------------------------------------------------------

    def _join_number(self, node: fx.Node) -> None:
        """Join a size with its only reader, which has a tensor with that size as its input (see `sizes`)."""
        is_number = not self._seen[node].has_tensor and self._seen[node].is_leaf
        if is_number and self._captured.sites[node].call is None:
            readers = [reader for reader in node.users if reader in self._position]
            if len(readers) == len(node.users) and len({self._find(reader) for reader in readers}) == 1:
                self._join([node, readers[0]])

    def _join_end(self, root: fx.Node) -> None:
        """Join a value without readers, such as a step counter in a buffer, to the call it reads from or the next."""
        members = self._members(root) if self._find(root) is root else []
        if not members or self._readers(members):
            return
        sources = [one for node in members for one in node.all_input_nodes if one in self._position]
        outside = [one for one in sources if self._find(one) is not root]
        following = self._calls[self._position[members[-1]] + 1 :]
        if outside:
            self._join([root, max(outside, key=self._position.__getitem__)])
        elif following and not any(one in self._captured.sources for one in self._values_read(members)):
            self._join([root, following[0]])

    def _values_read(self, members: list[fx.Node]) -> list[fx.Node]:
        """Return the values of other calls that these read, without parameters and buffers."""
        state = {node for node, source in self._captured.sources.items() if source.kind is not PlaceholderKind.INPUT}
        return [one for node in members for one in node.all_input_nodes if one not in state and one not in members]

    def _join_constant(self, root: fx.Node) -> None:
        """Join a value made only of numbers with its only reader, so that it need not be sent."""
        members = self._members(root) if self._find(root) is root else []
        if not members or any(
            node.all_input_nodes and not set(node.all_input_nodes) <= set(members) for node in members
        ):
            return
        if any(self._seen[node].is_random or self._captured.sites[node].call for node in members):
            return
        readers = self._readers(members)
        groups = {self._find(reader) for reader in readers if reader in self._position}
        if len(groups) == 1 and readers <= self._position.keys():
            self._join([root, *groups])

    def _readers(self, members: list[fx.Node]) -> set[fx.Node]:
        return {reader for node in members for reader in node.users} - set(members)

    def _join_view(self, root: fx.Node) -> None:
        """Join a group that only views its input with the call that makes the input, or else with its only reader."""
        if self._find(root) is not root:
            return
        members = self._members(root)
        if not all(self._is_view(node) for node in members):
            return
        inside = set(members)
        read = {one for node in members for one in node.all_input_nodes if one not in inside}
        made = {self._find(one) for one in read if one in self._position}
        readers = self._readers(members)
        if len(made) == 1 and read <= self._position.keys() and not self._is_mark(*made):
            (source,) = made
            is_sole_reader = all(set(one.users) - set(self._members(source)) <= inside for one in read)
            sizes = [max(self._seen[one].size_bytes for one in some) for some in (read, members)]
            has_parts = not all(self._seen[one].is_tensor for one in read)
            is_number = not any(self._seen[node].has_tensor for node in members)
            if has_parts or is_number or (is_sole_reader and sizes[1] <= sizes[0]):
                self._join([source, root])
                return
        groups = {self._find(reader) for reader in readers if reader in self._position}
        if len(groups) == 1 and all(reader in self._position for reader in readers):
            (target,) = groups
            if not self._is_mark(target) and not self._would_reorder(members, read, target):
                self._join([root, target])

    def _is_view(self, node: fx.Node) -> bool:
        seen = self._seen[node]
        if seen.is_random or seen.written or self._is_mark(node):
            return False
        read: set[int] = set()
        for one in node.all_input_nodes:
            read |= self._seen[one].storages
        return seen.storages <= read

    def _is_mark(self, node: fx.Node) -> bool:
        """Return whether a call is a `cut_here` mark, which stays an operator of its own."""
        return self._captured.sites[node].name == CUT_HERE

    def _would_reorder(self, members: list[fx.Node], read: set[fx.Node], target: fx.Node) -> bool:
        """Return whether gradients would be added in another order if these calls ran where the target is."""
        first, last = self._position[members[-1]], min(self._position[node] for node in self._members(target))
        return any(
            self._seen[one].requires_grad and first < self._position.get(reader, -1) < last
            for one in read
            for reader in one.users
        )

    # --- 4 ------------------------------------------------------------------------------------------------------------

    def _edges(self) -> dict[fx.Node, set[fx.Node]]:
        """Return for each set the sets that must run after it."""
        after: dict[fx.Node, set[fx.Node]] = {self._find(node): set() for node in self._calls}
        random: fx.Node | None = None
        for node in self._calls:
            root = self._find(node)
            for reader in node.users:
                if reader in self._position:
                    after[root].add(self._find(reader))
            if self._seen[node].is_random:
                if random is not None:
                    after[self._find(random)].add(root)
                random = node
        for root, ends in after.items():
            ends.discard(root)
        return after

    def _join_circles(self) -> None:
        for circle in strong_components(self._edges()):
            self._join(circle)

    def _in_order(self) -> list[list[fx.Node]]:
        """Return the sets in topological order, the one with the earliest call first where there is a choice."""
        after = self._edges()
        members = {root: self._members(root) for root in after}
        main = {root: max(map(self._weighty_position, nodes)) for root, nodes in members.items()}
        order = topological_order(after, lambda root: (main[root], self._position[root]))
        return [members[root] for root in order]

    def _weighty_position(self, node: fx.Node) -> int:
        return -1 if self._is_view(node) or node.op == "get_attr" else self._position[node]


def strong_components(after: Mapping[fx.Node, set[fx.Node]]) -> list[list[fx.Node]]:
    """Return the strongly connected components of a graph (Tarjan 1972), without recursion."""
    index: dict[fx.Node, int] = {}
    low: dict[fx.Node, int] = {}
    path: list[fx.Node] = []
    on_path: set[fx.Node] = set()
    found: list[list[fx.Node]] = []
    for start in after:
        if start in index:
            continue
        work = [(start, iter(list(after[start])))]
        index[start] = low[start] = len(index)
        path.append(start)
        on_path.add(start)
        while work:
            vertex, ends = work[-1]
            following = next((end for end in ends if end not in index or end in on_path), None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == index[vertex]:
                    component: list[fx.Node] = []
                    while not component or component[-1] is not vertex:
                        component.append(path.pop())
                        on_path.discard(component[-1])
                    found.append(component)
            elif following in index:
                low[vertex] = min(low[vertex], index[following])
            else:
                index[following] = low[following] = len(index)
                path.append(following)
                on_path.add(following)
                work.append((following, iter(list(after[following]))))
    return found
