"""Target strings: each form opens, and each mistake is one sentence that lists the forms."""

import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skops.io import dump
from torch import nn

import foldline as fl
from foldline.errors import BadFile, BadInput, BadSpec, Refused, TargetError
from foldline.oracles import demo
from foldline.oracles.targets import FORMS, target_module

X = torch.randn(20, 4, generator=fl.generator(0), dtype=torch.float64)


def test_the_demo_is_quick_and_good() -> None:
    demo.trained.cache_clear()
    start = time.process_time()
    f = fl.value_oracle("demo:digits")
    assert time.process_time() - start < 20.0           # 0.6 s here; waiting threads count, and made it 7 once
    digits = load_digits()
    labels = fl.label_oracle("demo:digits")(torch.from_numpy(digits.data) / 16)
    assert (f.dim, f.outputs) == (64, 10) and float((labels.numpy() == digits.target).mean()) > 0.97
    first = fl.value_oracle("demo:digits")(torch.ones(1, 64))
    demo.trained.cache_clear()
    assert torch.equal(first, fl.value_oracle("demo:digits")(torch.ones(1, 64)))
    assert isinstance(target_module("demo:digits"), nn.Sequential)


def test_weights_by_scheme_by_ending_and_with_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    fl.save(net, "n.safetensors")
    for text in ("weights:n.safetensors", "n.safetensors", str(tmp_path / "n.safetensors")):
        f = fl.value_oracle(text)
        assert f.dtype == torch.float32 and torch.equal(f(X), net(X.float()).detach())
    from safetensors.torch import save_file
    save_file(net.state_dict(), "bare.safetensors")
    Path("shapes_of_mine.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))\n"
        "def broken():\n    raise RuntimeError('no luck')\ndef other():\n    return 3\nvalue = 5\n"
        "def double(x):\n    return 2 * x.sum(1)\n")
    f = fl.value_oracle("weights:bare.safetensors@shapes_of_mine:make")
    assert torch.equal(f(X), net(X.float()).detach())
    for text in ("torch:shapes_of_mine:make", "torch:shapes_of_mine.py:make"):
        first, second = fl.value_oracle(text)(X), fl.value_oracle(text)(X)
        assert torch.equal(first, second)                       # a factory's random start is the same each time
    assert fl.value_oracle("py:shapes_of_mine:double", dim=4)(X).shape == (20, 1)
    for text, says in (("torch:shapes_of_mine:broken", "no luck"), ("torch:shapes_of_mine:other", "int"),
                       ("torch:shapes_of_mine:value", "factory"), ("py:shapes_of_mine:value", "called"),
                       ("torch:shapes_of_mine:mak", "it has")):
        with pytest.raises((BadSpec, TargetError), match=says):
            fl.value_oracle(text)
    Path("breaks.py").write_text("1 / 0\n")
    with pytest.raises(TargetError, match="ZeroDivisionError"):
        fl.value_oracle("py:breaks:f")


@pytest.mark.parametrize("text", ["torhc:a:b", "weight:n.safetensors", "model.pt", "nonsense", "", "torch:", "demo:",
                                  "file:///etc/passwd"])
def test_a_typo_lists_the_forms(text: str) -> None:
    with pytest.raises(BadSpec) as caught:
        fl.value_oracle(text)
    assert FORMS in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["torch:os", "py:no_such_module:f", "torch:foldline:nothing", "demo:mnist",
                                  "weights:none.safetensors", "onnx:none.onnx", "sklearn:none.skops"])
def test_what_is_missing_is_named(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        fl.value_oracle(text)
    assert "\n" not in str(caught.value)


def graph(path: Path, *, batch: int | str, outputs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    W, b = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=3).astype("f4")
    nodes = [helper.make_node("Gemm", ["x", "W", "b"], ["z"]), helper.make_node("Softmax", ["z"], ["p"], axis=1),
             helper.make_node("ArgMax", ["z"], ["label"], axis=1, keepdims=0)]
    kinds = {"p": (TensorProto.FLOAT, [batch, 3]), "z": (TensorProto.FLOAT, [batch, 3]),
             "label": (TensorProto.INT64, [batch])}
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
                             [helper.make_tensor_value_info(o, *kinds[o]) for o in outputs],
                             [numpy_helper.from_array(W, "W"), numpy_helper.from_array(b, "b")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return W, b


@pytest.mark.parametrize("batch", ["n", 1, 8])
def test_onnx_answers_values_and_labels(batch: int | str, tmp_path: Path) -> None:
    W, b = graph(tmp_path / "m.onnx", batch=batch, outputs=["label", "p"])
    z = X.float().numpy() @ W + b
    f, lb = fl.value_oracle(f"onnx:{tmp_path / 'm.onnx'}"), fl.label_oracle(str(tmp_path / "m.onnx"))
    assert (f.dim, f.outputs, f.dtype) == (4, 3, torch.float32)
    assert np.allclose(f(X).numpy(), np.exp(z) / np.exp(z).sum(1, keepdims=True), atol=1e-6)
    assert lb(X).tolist() == z.argmax(1).tolist()
    with pytest.raises(Refused, match="differences="):
        fl.gradient_oracle(f"onnx:{tmp_path / 'm.onnx'}")
    graph(tmp_path / "z.onnx", batch=batch, outputs=["z"])
    g = fl.gradient_oracle(f"onnx:{tmp_path / 'z.onnx'}", 1, differences=0.5)
    assert np.allclose(g(X[:2])[1].numpy(), W[:, 1], atol=1e-5) and g.used == 2 * 9
    assert fl.label_oracle(f"onnx:{tmp_path / 'z.onnx'}")(X).tolist() == z.argmax(1).tolist()


def test_a_broken_onnx_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"hello")
    with pytest.raises(BadFile, match=r"m\.onnx"):
        fl.value_oracle(str(tmp_path / "m.onnx"))


def test_sklearn_answers_values_and_labels(tmp_path: Path) -> None:
    x = X.numpy()
    names = np.where(x[:, 0] > 0.7, "right", np.where(x[:, 0] < -0.3, "left", "middle"))
    models = {"logistic": LogisticRegression(), "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
              "forest": RandomForestClassifier(5, random_state=0), "net": MLPClassifier((4,), max_iter=10)}
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                     # ten steps do not converge, and need not
            model.fit(x, names)
        path = tmp_path / f"{name}.skops"
        dump(model, path)
        f, lb = fl.value_oracle(f"sklearn:{path}"), fl.label_oracle(f"sklearn:{path}")
        assert (f.dim, f.outputs) == (4, 3)
        assert np.array_equal(f(X).numpy(), model.predict_proba(x))
        assert model.classes_[lb(X).numpy()].tolist() == model.predict(x).tolist()
    line = LinearRegression().fit(x, x[:, 0] * 3 + 1)
    dump(line, tmp_path / "line.skops")
    f = fl.value_oracle(str(tmp_path / "line.skops"))
    assert f.outputs == 1 and np.allclose(f(X)[:, 0].numpy(), x[:, 0] * 3 + 1)
    with pytest.raises(Refused, match="differences="):
        fl.gradient_oracle(str(tmp_path / "line.skops"))


def mine(x: np.ndarray) -> np.ndarray:
    return x


def test_a_skops_file_with_foreign_types_is_not_loaded(tmp_path: Path) -> None:
    model = make_pipeline(FunctionTransformer(mine), LinearRegression()).fit(X.numpy(), X[:, 0].numpy())
    dump(model, tmp_path / "m.skops")
    with pytest.raises(Refused, match="mine"):
        fl.value_oracle(str(tmp_path / "m.skops"))
    (tmp_path / "p.skops").write_bytes(b"\x80\x04hello")
    with pytest.raises(BadFile, match="pickles"):
        fl.value_oracle(str(tmp_path / "p.skops"))
    with zipfile.ZipFile(tmp_path / "z.skops", "w") as z:
        z.writestr("a", "b")
    with pytest.raises(BadFile, match="skops"):
        fl.value_oracle(str(tmp_path / "z.skops"))
    dump(LinearRegression(), tmp_path / "u.skops")
    with pytest.raises(Refused, match="not fitted"):
        fl.value_oracle(str(tmp_path / "u.skops"))
