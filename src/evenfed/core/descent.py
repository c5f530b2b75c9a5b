"""Gradient descent that a client function calls, fast for one client and for thousands.

`descend` is written for one client. Under `torch.func.vmap` it does not run its loop inside the
transform: it takes the stacked tensors, lifts the direction over the clients' axis, traces that
once to plain tensor operations and steps in place. So a method's author writes one client, and
a chunk of clients costs a few batched kernels a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.even import paused
from evenfed.core.examples import Examples
from evenfed.core.optimizer import Optimizer, Stepper
from evenfed.core.tracing import Eager, First, Step, traced
from evenfed.core.tree import Tree

Direction = Callable[[Tree, Examples, Tree], tuple[Tree, Tree]]
"""`(params, batch, context) -> (gradient, extras)`, pure; extras are kept for every step.

Equal directions (by `==` and `hash`) are traced once: use functions of a module, bound methods of
frozen dataclasses or frozen dataclasses with `__call__`. A function made inside another function
works too, without a trace.
"""

_FLIPPED_FROM = 8
"""Steps from which matrices are held transposed: fewer do not pay for the copy back."""


def descend(
    direction: Direction | tuple[Direction, ...],
    params: Tree,
    data: Examples,
    batches: Batches,
    *,
    optimizer: Optimizer,
    lr: float | Tensor,
    context: Tree = (),
) -> tuple[Tree, Tree]:
    """Take the steps of `batches` from `params` along `direction`.

    Parameters
    ----------
    direction : callable, or tuple of callables
        See `Direction`. Those of a tuple take turns, step by step, and share one structure of
        extras.
    params : tree
        Where to start; any tree of tensors.
    data : Examples
        All examples of the client `(n, ...)`.
    context : tree
        Further tensors for the direction (the received model, control variates, weights).

    Returns
    -------
    params, extras : trees
        The last iterate, and the direction's extras stacked over the `S` steps; they are zero
        for steps that are padding.
        Gradients do not flow through a descent.
    """
    flat_params, params_spec = trees.flatten(params)
    flat_context, context_spec = trees.flatten(context)
    turns = direction if isinstance(direction, tuple) else (direction,)
    plan = _Plan(turns, optimizer, params_spec, context_spec, len(flat_params), len(flat_context))
    rate = lr if isinstance(lr, Tensor) else torch.tensor(float(lr), dtype=torch.float64)
    out = _Descend.apply(  # type: ignore[no-untyped-call]
        plan, rate, *flat_params, data.x, data.y, data.group, data.mask,
        batches.index, batches.mask, *flat_context,
    )  # fmt: skip
    new = trees.unflatten(out[: plan.n_params], params_spec)
    return new, trees.unflatten(out[plan.n_params :], plan.extras[0])


@dataclass(frozen=True)
class _Level:
    """One vmap around the descent: which inputs carry its axis (always first)."""

    size: int
    data: bool
    rate: bool
    context: tuple[bool, ...]


@dataclass(frozen=True)
class _Plan:
    turns: tuple[Direction, ...]
    optimizer: Optimizer
    params_spec: Any
    context_spec: Any
    n_params: int
    n_context: int
    levels: tuple[_Level, ...] = ()
    extras: list[Any] = field(default_factory=list)
    """The structure of the extras, known once the direction has run."""

    def key(self, direction: Direction) -> Any:
        """What a trace may be kept under; None for a function made inside another one.

        Such a function is a new object at every call: no trace of it would ever be found again.
        """
        hooks = vars(direction).values() if is_dataclass(direction) else ()
        if any("<locals>" in getattr(f, "__qualname__", "") for f in (direction, *hooks)):
            return None
        return (direction, str(self.params_spec), str(self.context_spec), self.levels)

    def lifted(self, direction: Direction) -> tuple[Callable[..., list[Tensor]], list[Any]]:
        """The direction on flat stacked tensors, vmapped once for every level.

        The list beside it receives the structure of the extras when the function runs.
        """
        found: list[Any] = []

        def flat(*args: Any) -> list[Tensor]:
            params = trees.unflatten(args[: self.n_params], self.params_spec)
            batch = Examples(*args[self.n_params : self.n_params + 4])
            context = trees.unflatten(args[self.n_params + 4 :], self.context_spec)
            gradient, extras = direction(params, batch, context)
            extra_leaves, spec = trees.flatten(extras)
            found[:] = [spec]
            return [*trees.flatten(gradient)[0], *extra_leaves]

        function: Callable[..., list[Tensor]] = flat
        for level in reversed(self.levels):
            dims = [0] * self.n_params + [0 if level.data else None] * 4
            dims += [0 if carried else None for carried in level.context]
            function = vmap(function, in_dims=tuple(dims))
        return function, found


class _Descend(torch.autograd.Function):
    """Carries the loop past vmap: each vmap level only adds an axis to the plan."""

    @staticmethod
    def forward(plan: _Plan, lr: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        with paused():
            return tuple(_run(plan, lr, flat))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: _Plan, lr: Tensor, *flat: Tensor) -> Any:
        size: int = info.batch_size
        _, lr_dim, *dims = in_dims
        n = plan.n_params

        def front(t: Tensor, dim: int | None, needed: bool) -> Tensor:
            if dim is not None:
                return t.movedim(dim, 0)
            return t.expand(size, *t.shape) if needed else t

        has_data = any(d is not None for d in dims[n : n + 6])
        needed = [True] * n + [has_data] * 6 + [False] * plan.n_context
        moved = [front(t, d, k) for t, d, k in zip(flat, dims, needed, strict=True)]
        level = _Level(
            size, has_data, lr_dim is not None, tuple(d is not None for d in dims[n + 6 :])
        )
        lifted = replace(plan, levels=(level, *plan.levels))
        out = _Descend.apply(  # type: ignore[no-untyped-call]
            # a rate that carries an inner axis needs the outer one too, to stand before it
            lifted,
            front(lr, lr_dim, lr.ndim > 0),
            *moved,
        )
        return out, (0,) * len(out)


def _run(plan: _Plan, lr: Tensor, flat: Sequence[Tensor]) -> list[Tensor]:
    """The loop itself, on real (stacked) tensors."""
    n = plan.n_params
    feed = _Feed(flat[n : n + 4], flat[n + 4], flat[n + 5], sum(lv.data for lv in plan.levels))
    context = [c.detach() for c in flat[n + 6 :]]
    lead = len(plan.levels)
    rate: float | Tensor = lr if lr.ndim else float(lr)
    in_place = plan.optimizer.plain and isinstance(rate, float)
    turns = [_Turn(plan, direction) for direction in plan.turns]
    plan.extras[:] = [trees.flatten(())[1]]
    shown = [p.detach() for p in flat[:n]]
    held: _Held | None = None
    runs: dict[Eager, Step] = {}
    extras: list[Sequence[Tensor]] = []
    with torch.no_grad():
        for s in range(feed.steps):
            batch = feed.batch(s)
            active = _spread(feed.active(s), plan.levels)
            form = turns[s % len(turns)].form(shown, batch, context)
            if held is None:
                flip = in_place and len(turns) == 1 and feed.drawn >= _FLIPPED_FROM
                held = _Held(shown, form.flipped if flip else ())
                stepper, shown = Stepper(plan.optimizer, held.params, lead), held.shown
            if form not in runs:
                first = First(held.params, batch, context, feed.steady, feed.standing)
                runs[form] = (
                    form.step(first, float(rate), flipped=held.flips)
                    if in_place
                    else form.gradient(first)
                )
            before = [] if active is None or not in_place else [p.clone() for p in held.params]
            extra = runs[form](held.params, batch)
            if not in_place:
                stepper.step(extra[:n], rate, active)
                extra = extra[n:]
            elif active is not None:
                stepper.restore(active, before)
            if active is not None:
                extra = [e.masked_fill(~stepper.wide(active, e), 0) for e in extra]
            extras.append(list(extra))
            plan.extras[:] = form.found
    stacked = [_over_steps(column, feed.drawn, lead) for column in zip(*extras, strict=True)]
    return [*(held or _Held(shown, ())).result(), *stacked]


class _Turn:
    """One direction and its fast form for the shapes at hand."""

    def __init__(self, plan: _Plan, direction: Direction) -> None:
        self.lifted, self.found = plan.lifted(direction)
        self.key = plan.key(direction)
        self.last = Eager(self.lifted, self.found, plan.n_params)
        self.shape: torch.Size | None = None

    def form(
        self, params: Sequence[Tensor], batch: Sequence[Tensor], context: Sequence[Tensor]
    ) -> Eager:
        """Of the steps of a descent, shapes differ in the number of rows alone."""
        if self.key is not None and batch[0].shape != self.shape:
            args = [*params, *batch, *context]
            self.last = traced(self.lifted, self.found, self.key, args, self.last.n_params)
            self.shape = batch[0].shape
        return self.last


class _Held:
    """The loop's own copy of the parameters, some of them transposed in memory."""

    def __init__(self, given: Sequence[Tensor], flipped: Sequence[bool]) -> None:
        flipped = flipped or [False] * len(given)
        self.flips = any(flipped)
        self.params = [_own(p, flip) for p, flip in zip(given, flipped, strict=True)]
        self.shown = [p.mT if flip else p for p, flip in zip(self.params, flipped, strict=True)]
        """The same memory in the shape of the parameters."""

    def result(self) -> list[Tensor]:
        """The parameters, contiguous."""
        return [p.contiguous() for p in self.shown]


def _own(param: Tensor, flip: bool) -> Tensor:
    """A contiguous copy, transposed if asked; what all clients share is transposed once."""
    if not flip:
        return param.clone(memory_format=torch.contiguous_format)
    if param.stride(0) == 0:
        once = param[0].mT.contiguous()
        return once.expand(param.shape[0], *once.shape).clone(memory_format=torch.contiguous_format)
    return param.mT.clone(memory_format=torch.contiguous_format)


def _over_steps(column: Sequence[Tensor], steps: int, axis: int) -> Tensor:
    """Stack over the steps along `axis`; steps at the end that nobody took are zero."""
    column = [*column, *([torch.zeros_like(column[0])] * (steps - len(column)))]
    return torch.stack(column, dim=axis)


def _spread(active: Tensor | None, levels: Sequence[_Level]) -> Tensor | None:
    """Give per-client activity an axis for every level, also those without data of their own."""
    if active is None:
        return None
    for axis, level in enumerate(levels):
        if not level.data:
            active = active.unsqueeze(axis)
    return active.expand([level.size for level in levels])


class _Feed:
    """Cuts batches out of stacked data: one row copy a step, nothing for full batch."""

    def __init__(self, data: Sequence[Tensor], index: Tensor, mask: Tensor, lead: int) -> None:
        self.drawn = self.steps = int(mask.shape[-2])
        self.lead_shape = tuple(mask.shape[:lead])
        self.full = index.shape[-1] == 0
        rows = mask.any(-1).reshape(-1, self.steps)
        self._all = rows.all(0).tolist()
        self._any = rows.any(0).tolist()
        self._rows = mask.any(-1)
        while self.steps and not self._any[self.steps - 1]:
            self.steps -= 1
        self.x, self.y, self.group, self.data_mask = data
        self.steady: tuple[int, ...] = (0, 1, 2, 3) if self.full else ()
        """Positions in a batch that are the same tensor, or equal, in every step."""
        self.standing: tuple[int, ...] = ()
        """Those that are the same memory in every step, with other numbers in it."""
        if self.full:
            return
        if bool(mask.all()):
            self.steady = (3,)
        n = self.data_mask.shape[-1]
        count = self._rows.numel() // mask.shape[-2] if lead else 1
        offset = (torch.arange(count, device=index.device) * n).view(*self.lead_shape, 1, 1)
        where = index + offset
        # step axis first, so that each step's rows are contiguous
        by_step = where.movedim(lead, 0).reshape(mask.shape[-2], -1)
        real = mask.movedim(lead, 0).contiguous()
        flat_where = by_step.reshape(-1)
        shape = (mask.shape[-2], *self.lead_shape, index.shape[-1])
        self.where, self.mask = by_step.unbind(0), real.unbind(0)
        self.flat_x = self.x.reshape(-1, *self.x.shape[lead + 1 :])
        self.steps_y = self.y.reshape(-1).index_select(0, flat_where).view(shape).unbind(0)
        self.steps_group = self.group.reshape(-1).index_select(0, flat_where).view(shape).unbind(0)
        # one client alone need not compute the padding of its last short batch
        self.trim = not lead
        self.real = real.sum(-1).tolist() if self.trim else []
        if not self.trim:
            self.rows = self.flat_x.new_empty((by_step.shape[1], *self.flat_x.shape[1:]))
            self.rows_x = self.rows.view(*shape[1:], *self.rows.shape[1:])
            self.standing = (0,)

    def active(self, s: int) -> Tensor | None:
        """Clients that take step `s`; None if all do."""
        return None if self._all[s] else self._rows[..., s]

    def batch(self, s: int) -> list[Tensor]:
        """x, y, group and mask of step `s`, each with the leading axes."""
        if self.full:
            return [self.x, self.y, self.group, self.data_mask]
        if self.trim:
            k = max(1, self.real[s])
            x = self.flat_x.index_select(0, self.where[s][:k])
            return [x, self.steps_y[s][:k], self.steps_group[s][:k], self.mask[s][:k]]
        # every step's rows go to the same memory: the last step's are no longer read
        torch.index_select(self.flat_x, 0, self.where[s], out=self.rows)
        return [self.rows_x, self.steps_y[s], self.steps_group[s], self.mask[s]]
