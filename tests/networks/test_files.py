"""Networks come back bit for bit; every bad file is one sentence, and nothing in it is run."""

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import foldline as fl
from foldline.errors import BadFile, BadInput, Refused
from foldline.networks.files import KEY, read_extra
from foldline.networks.mlp import MLP


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def conv() -> nn.Sequential:
    net = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Conv2d(3, 2, 3, stride=2, bias=False), nn.GELU(), nn.AvgPool2d(1),
                        nn.Flatten(), nn.Sequential(nn.LayerNorm(2), nn.LeakyReLU(0.2), nn.Dropout(0.1)), nn.Identity(),
                        nn.Linear(2, 3), nn.ELU(0.7), nn.Tanh(), nn.Linear(3, 2), nn.Softmax(1))
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(generator=fl.generator(3))
    return net.eval()


@pytest.mark.parametrize(("make", "d"), [(dense, 3), (lambda: dense().double(), 3), (conv, 64),
                                         (lambda: nn.Sequential(nn.Linear(3, 1, bias=False), nn.Sigmoid()), 3)])
def test_a_network_comes_back_bit_for_bit(make: object, d: int, tmp_path: Path) -> None:
    net = make()            # type: ignore[operator]
    fl.save(net, tmp_path / "n.safetensors", extra={"data": "digits"})
    state = torch.random.get_rng_state()
    back = fl.load(tmp_path / "n.safetensors")
    assert torch.equal(state, torch.random.get_rng_state())             # nothing was initialised only to be replaced
    x = torch.randn(5, d, generator=fl.generator(0), dtype=next(net.parameters()).dtype)
    assert torch.equal(net(x), back(x)) and not back.training
    assert read_extra(tmp_path / "n.safetensors") == {"data": "digits"}
    assert [p.name for p in tmp_path.iterdir()] == ["n.safetensors"]    # no temporary file stays behind


def test_input_shape_and_box_are_kept(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 5 * 8, 2))
    net.input_shape, net.box = (1, 7, 10), (0.0, 1.0)               # type: ignore[assignment]
    fl.save(net, tmp_path / "n.safetensors")
    f = fl.value_oracle(f"weights:{tmp_path / 'n.safetensors'}")
    assert (f.dim, f.box, f.outputs) == (70, (0.0, 1.0), 2)


def test_one_hidden_layer_networks_and_mlps(tmp_path: Path) -> None:
    W, b = torch.randn(4, 3, generator=fl.generator(1)).double(), torch.zeros(4).double()
    net = fl.Network(W, b, torch.ones(1, 4), torch.zeros(1, 3), torch.tensor([2.0]), "sigmoid")
    fl.save(net, tmp_path / "a.safetensors")
    back = fl.load(tmp_path / "a.safetensors")
    x = torch.randn(6, 3, generator=fl.generator(2)).double()
    assert isinstance(back, fl.Network) and torch.equal(net(x), back(x))
    mlp = MLP.from_sequential(dense())
    fl.save(mlp, tmp_path / "m.safetensors")
    assert torch.equal(fl.load(tmp_path / "m.safetensors")(x), mlp(x))
    empty = fl.Network(W[:0], b[:0], torch.zeros(2, 0), torch.ones(2, 3), torch.zeros(2))
    fl.save(empty, tmp_path / "e.safetensors")
    assert torch.equal(fl.load(tmp_path / "e.safetensors")(x), empty(x))


def written(path: Path, state: dict[str, torch.Tensor], described: object) -> Path:
    text = described if isinstance(described, str) else json.dumps(described)
    save_file(state, path, {KEY: text})
    return path


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


LAYER = {"type": "Linear", "in_features": 3, "out_features": 1, "bias": True}
GOOD = {"0.weight": torch.ones(1, 3), "0.bias": torch.zeros(1)}


def spec(*layers: object, **more: object) -> dict[str, object]:
    return {"format": 1, "kind": "sequential", "layers": list(layers), **more}


@pytest.mark.parametrize(("state", "described", "says"), [
    ({"0.weight": torch.ones(1, 4), "0.bias": torch.zeros(1)}, spec(LAYER), "wrong shape: 0.weight is (1, 4)"),
    ({"0.weight": torch.tensor([[1.0, float("nan"), 0.0]]), "0.bias": torch.zeros(1)}, spec(LAYER), "NaN"),
    ({"0.weight": torch.ones(1, 3)}, spec(LAYER), "missing 0.bias"),
    ({**GOOD, "7.weight": torch.ones(2)}, spec(LAYER), "not wanted 7.weight"),
    (GOOD, spec({"type": "LSTM"}), "'LSTM'"),
    (GOOD, spec({**LAYER, "device": "cuda"}), "unknown settings: device"),
    (GOOD, spec({**LAYER, "in_features": "x"}), "cannot be made"),
    (GOOD, spec({**LAYER, "in_features": -3}), "cannot be"),
    (GOOD, spec("os.system"), "not a layer"),
    (GOOD, "[1, 2", "not JSON"),
    (GOOD, "[1, 2]", "not a table"),
    (GOOD, "[" * 100_000, "not JSON"),
    (GOOD, {"format": 99, "kind": "sequential"}, "format is 99"),
    (GOOD, {"format": 1, "kind": "pickle"}, "unknown kind"),
    (GOOD, {"format": 1, "kind": "one-hidden", "link": "identity"}, "needs the tensors"),
    (GOOD, spec({"type": "Sequential", "layers": 3}), "not a list of layers"),
])
def test_a_file_that_lies_is_refused(state: dict[str, torch.Tensor], described: object, says: str,
                                     tmp_path: Path) -> None:
    path = written(tmp_path / "n.safetensors", state, described)
    with pytest.raises(BadFile) as caught:
        fl.load(path)
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_pickles_zips_and_broken_files_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fl.save(dense(), "good.safetensors")
    whole = Path("good.safetensors").read_bytes()
    Path("pickle.safetensors").write_bytes(pickle.dumps(Bomb()))
    Path("old.safetensors").write_bytes(pickle.dumps(Bomb(), protocol=0))
    torch.save({"a": Bomb()}, "zip.safetensors")
    Path("empty.safetensors").write_bytes(b"")
    Path("noise.safetensors").write_bytes(bytes(range(200)))
    Path("huge.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{" + whole[9:])
    names = ["pickle", "old", "zip", "empty", "noise", "huge"]
    for cut in (4, 8, 20, len(whole) // 2, len(whole) - 1):
        Path(f"cut{cut}.safetensors").write_bytes(whole[:cut])
        names.append(f"cut{cut}")
    for name in names:
        with pytest.raises(BadFile):
            fl.load(f"{name}.safetensors")
    with pytest.raises(BadFile, match="pickle"):
        fl.load("zip.safetensors")
    with pytest.raises(BadFile, match="no file"):
        fl.load("nowhere.safetensors")
    with pytest.raises(BadFile):
        fl.load(tmp_path)
    assert not Path("exploded").exists()


def test_a_file_without_architecture_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    net = dense()
    save_file({k: v.contiguous() for k, v in net.state_dict().items()}, path)
    with pytest.raises(BadFile, match=r"0\.weight \(4, 3\).*architecture="):
        fl.load(path)
    x = torch.ones(2, 3)
    assert torch.equal(fl.load(path, architecture=dense())(x), net(x))
    with pytest.raises(BadFile, match="wrong shape"):
        fl.load(path, architecture=nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    class Mine(nn.Linear):
        pass

    for bad in (nn.Sequential(Mine(2, 1)), nn.LSTM(2, 2), nn.Sequential(nn.Linear(2, 1), nn.GRUCell(1, 1))):
        with pytest.raises(Refused):
            fl.save(bad, tmp_path / "n.safetensors")
    with pytest.raises(BadInput, match="not str"):
        fl.save("net", tmp_path / "n.safetensors")
    net = dense()
    with torch.no_grad():
        net[0].weight[0, 0] = float("inf")
    with pytest.raises(BadInput, match=r"0\.weight"):
        fl.save(net, tmp_path / "n.safetensors")
    with pytest.raises(BadFile, match="cannot be written"):
        fl.save(dense(), tmp_path / "no" / "such" / "folder.safetensors")
    assert list(tmp_path.iterdir()) == []
