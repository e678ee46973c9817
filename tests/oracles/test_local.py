"""Local targets: any shape, dtype and mode; callables are never asked unbilled rows; bad input is one sentence."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadAnswer, BadInput, BadQuery, FoldlineError, TargetError


class Counting:
    """A callable object around a module, as users write it."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.rows = module, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return self.module(x)


def test_a_callable_is_asked_only_what_is_billed() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    target = Counting(module)
    f, g, lb = fl.value_oracle(target), fl.gradient_oracle(target, 2), fl.label_oracle(target)
    assert (f.dim, f.outputs, f.dtype, g.dtype) == (6, 3, torch.float32, torch.float32)
    assert target.rows == 0
    f(torch.zeros(5, 6))
    g(torch.zeros(2, 6))
    lb(torch.zeros(3, 6))
    assert target.rows == 10 == f.used + g.used + lb.used


def test_outputs_cost_one_billed_row_where_an_empty_batch_is_refused() -> None:
    seen: list[int] = []

    def target(x: Tensor) -> Tensor:
        if not len(x):
            raise ValueError("nothing to do")
        seen.append(len(x))
        return torch.stack([x.sum(1), x.prod(1)], 1)

    f = fl.value_oracle(target, dim=4, budget=10)
    assert seen == []
    assert f.outputs == 2 and seen == [1] and f.used == 1
    assert f.outputs == 2 and f.used == 1                           # asked once


def test_width_and_dtype_follow_what_a_function_reaches() -> None:
    module = nn.Sequential(nn.Linear(7, 2))
    W = torch.randn(3, 9)
    image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 26 * 26, 2))

    def inner(x: Tensor) -> Tensor:
        return module(x)

    def outer(x: Tensor) -> Tensor:
        return inner(x)

    targets = [(lambda x: module(x), 7), (outer, 7), (functools.partial(torch.nn.functional.linear, weight=W), 9),
               (lambda x: torch.relu(x @ W.T), 9), (lambda x: image(x.view(-1, 1, 28, 28)), 784), (module.forward, 7)]
    for target, d in targets:
        f = fl.value_oracle(target)
        assert (f.dim, f.dtype) == (d, torch.float32)
        f(torch.zeros(2, d))
    with pytest.raises(BadInput, match="dim="):
        fl.value_oracle(lambda x: x.sum(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_dtype(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(dtype)
    x = torch.randn(5, 4, generator=fl.generator(0), dtype=torch.float64)
    assert torch.equal(fl.value_oracle(net)(x), net(x.to(dtype)).detach())
    y, grad = fl.gradient_oracle(net, 1)(x)
    assert y.dtype == grad.dtype == dtype and grad.shape == (5, 4)


def test_rows_are_flat_outside_and_shaped_inside() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    f = fl.value_oracle(net, input_shape=(3, 6, 9))
    x = torch.randn(4, 162)
    assert f.dim == 162 and torch.equal(f(x), net(x.view(4, 3, 6, 9)).detach())
    assert fl.gradient_oracle(net, input_shape=(3, 6, 9))(x)[1].shape == (4, 162)
    with pytest.raises(BadInput, match="162"):
        fl.value_oracle(net, input_shape=(3, 6, 9), dim=100)


def test_a_conv_net_that_reshapes_by_minus_one_is_understood_and_not_asked() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out, self.rows = nn.Conv2d(3, 4, 5), nn.Linear(4 * 28 * 28, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.rows += len(x)
            return self.out(torch.relu(self.conv(x)).view(x.shape[0], -1))

    net = Net()
    f = fl.value_oracle(net)
    assert f.dim == 3 * 32 * 32 and net.rows == 0
    assert f(torch.zeros(2, 3072)).shape == (2, 2) and net.rows == 2 == f.used


def test_a_callable_may_answer_value_and_gradient_itself() -> None:
    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().sum(1), 2 * x

    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    y, grad = fl.gradient_oracle(target, dim=2)(x)
    assert y.tolist() == [5.0] and grad.tolist() == [[2.0, 4.0]]
    assert fl.value_oracle(target, dim=2)(x).tolist() == [[5.0]]


def test_labels_by_threshold_and_by_the_largest() -> None:
    one = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(one.weight)
    x = torch.tensor([[-1.0], [0.0], [0.4], [2.0]], dtype=torch.float64)
    assert fl.label_oracle(one)(x).tolist() == [0, 1, 1, 1]
    assert fl.label_oracle(one, threshold=0.5)(x).tolist() == [0, 0, 0, 1]
    assert fl.label_oracle(lambda x: (x[:, 0] > 0).long() * 7, dim=1)(x).tolist() == [0, 0, 7, 7]


def test_differences_bill_every_value() -> None:
    net = nn.Sequential(nn.Linear(5, 2)).double()
    g = fl.gradient_oracle(net, 1, differences=1e-3, budget=22)
    x = torch.randn(2, 5, generator=fl.generator(0), dtype=torch.float64)
    y, grad = g(x)
    assert torch.allclose(grad, net[0].weight[1].expand(2, 5), atol=1e-11) and torch.allclose(y, net(x)[:, 1])
    assert g.used == 22 and g.remaining == 0
    with pytest.raises(FoldlineError):
        g(x[:1])
    walled = fl.gradient_oracle(net, 1, differences=1e-3, box=(0.0, 1.0))
    assert torch.allclose(walled(torch.ones(1, 5))[1][0], net[0].weight[1], atol=1e-11)


ODD = st.sampled_from(["rows", "columns", "nan", "inf", "none", "text", "list", "scalar", "raise", "complex", "empty"])


def odd_answer(how: str, x: Tensor) -> object:
    y = x.sum(1, keepdim=True)
    if how == "raise":
        raise RuntimeError("out of luck")
    return {"rows": y[:-1], "columns": torch.cat([y, y], 1)[:, :1 + (len(x) > 1)], "nan": y * float("nan"),
            "inf": y / 0, "none": None, "text": "hello", "list": [[1.0], [2.0, 3.0]], "scalar": torch.tensor(1.0),
            "complex": y.to(torch.complex128), "empty": y[:, :0]}[how]


@settings(max_examples=60, deadline=None)
@given(how=ODD, n=st.integers(2, 6), kind=st.sampled_from(["value", "gradient", "label"]))
def test_a_target_that_answers_nonsense_is_one_sentence(how: str, n: int, kind: str) -> None:
    make = {"value": fl.value_oracle, "gradient": fl.gradient_oracle, "label": fl.label_oracle}[kind]
    oracle = make(lambda x: odd_answer(how, x), dim=3)
    if kind == "value":
        oracle(torch.zeros(1, 3)) if how == "columns" else None     # the width is learned, then broken
    if how == "columns" and kind != "value":
        return
    if how == "inf" and kind == "label":
        return                                                      # infinity has a sign, so it has a label
    before = oracle.used
    with pytest.raises((BadAnswer, TargetError, BadInput)) as caught:
        oracle(torch.ones(n, 3, dtype=torch.float64))
    assert "\n" not in str(caught.value).strip() and len(str(caught.value)) > 20
    assert oracle.used == before + n                                # it was sent, so it counts


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(0, 5), max_size=3), bad=st.sampled_from([0.0, float("nan"), float("inf"), -5.0]),
       dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]))
def test_a_bad_query_is_refused_before_it_costs(shape: list[int], bad: float, dtype: torch.dtype) -> None:
    f = fl.value_oracle(nn.Linear(3, 1), box=(-1.0, 1.0), budget=100)
    x = torch.full(shape, bad if dtype.is_floating_point else 0, dtype=dtype)
    good = len(shape) == 2 and shape[0] > 0 and shape[1] == 3 and dtype.is_floating_point and bad == 0.0
    if good:
        assert f(x).shape == (shape[0], 1) and f.used == shape[0]
        return
    with pytest.raises(BadQuery):
        f(x)
    assert f.used == 0


@pytest.mark.parametrize("arguments", [{"dim": 0}, {"dim": -2}, {"budget": -1}, {"budget": 1.5}, {"box": (1.0, 0.0)},
                                       {"box": 3.0}, {"box": (0.0, float("nan"))}])
def test_bad_settings_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        fl.value_oracle(nn.Linear(3, 1), **arguments)


def test_things_that_are_not_targets() -> None:
    for target in (3, None, [1.0], torch.zeros(3)):
        with pytest.raises(BadInput, match="target is a torch module"):
            fl.value_oracle(target)
    with pytest.raises(BadInput, match="output=5"):
        fl.gradient_oracle(nn.Linear(3, 2), output=5)
    with pytest.raises(BadInput, match="output=5"):
        fl.gradient_oracle(lambda x: x, output=5, dim=3)(torch.zeros(1, 3))
    with pytest.raises(TargetError, match="1 rows"):
        fl.value_oracle(nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 1)))(torch.zeros(1, 3))


class Doubling(nn.Module):
    """Writes into its input without saying so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0).sum(1, keepdim=True)


def test_a_target_that_writes_into_its_input_gets_a_copy_or_is_told() -> None:
    x = -torch.ones(3, 4)
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1))
    asked = x.clone()
    assert torch.equal(fl.value_oracle(net, dim=4)(asked), net(x.clone()).detach())
    _, grad = fl.gradient_oracle(net, dim=4)(asked)
    assert torch.equal(grad, torch.zeros(3, 4))                     # every input is below the first ReLU's fold
    fl.value_oracle(lambda x: x.mul_(2.0), dim=4)(asked)
    assert torch.equal(asked, x)
    with pytest.raises(TargetError, match="wrote into the 3 rows"):
        fl.value_oracle(Doubling(), dim=4)(asked.double())
