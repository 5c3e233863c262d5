"""Workloads by text: settings, configurations of Hugging Face, models of one's own, and what a wrong text says."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from geartrain.cli import main
from geartrain.errors import ConfigurationError, TaskError, UnknownName
from geartrain.models import get_workload
from geartrain.models.hf import hf_workload
from geartrain.models.hf_known import KNOWN, known_config
from geartrain.models.settings import Settings, of_their_kind, split

TINY = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 37, "n_positions": 12},
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 37,
        "max_position_embeddings": 12,
    },
    "bert": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 37,
        "max_position_embeddings": 512,
    },
    "t5": {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 24, "d_kv": 8, "vocab_size": 37, "n_positions": 12},
}
# Parameters by hand: of a block, times two; beside them.
COUNTS = {
    "gpt2": 2 * (4 * (256 + 16) + 2 * 16 * 64 + 64 + 16 + 4 * 16) + (37 + 12) * 16 + 32,
    "llama": 2 * (256 + 2 * 128 + 256 + 3 * 16 * 24 + 32) + 2 * 37 * 16 + 16,
    "bert": 2 * (4 * (256 + 16) + 2 * 16 * 64 + 64 + 16 + 4 * 16) + (37 + 512 + 2) * 16 + 32 + 256 + 16,
    "t5": 2 * (4 * 256 + 2 * 16 * 24 + 32) + 2 * (8 * 256 + 2 * 16 * 24 + 48) + 37 * 16 + 2 * 32 * 2 + 2 * 16,
}

OWN = """
import torch
from torch import nn
import geartrain

def build(width=8):
    module = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    return geartrain.Model(module=module, inputs=[torch.empty(1, 4)], loss=lambda out: out.logsumexp(1).mean())

def looks_at_numbers():
    sizes = [int(x) for x in torch.linspace(2, 4, 3)]
    return geartrain.Model(module=nn.Linear(4, sizes[-1]), inputs=[torch.empty(1, 4)], loss=lambda out: out.sum())

def bare():
    module = nn.Linear(4, 2)
    module.example_input_array = torch.empty(1, 4)
    return module

def nothing():
    return 3

class Branches(nn.Linear):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return super().forward(x)

def branches():
    return geartrain.Model(module=Branches(4, 2), inputs=[torch.empty(1, 4)], loss=lambda out: out.sum())
"""


@pytest.fixture
def own(workdir):
    (workdir / "own.py").write_text(OWN)


def config_file(folder, kind, **more):
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **TINY.get(kind, {}), **more}))
    return path


def test_a_text_is_a_name_and_settings():
    assert split("gpt2") == ("gpt2", Settings())
    assert split("a/b.py:f:width=3,dtype=bf16") == ("a/b.py:f", Settings(dtype="bf16", own={"width": 3}))
    assert split("x:checkpointing=all,optimizer=sgd, a = 0.5 ,b=true,c=word") == (
        "x",
        Settings(checkpointing="all", optimizer="sgd", own={"a": 0.5, "b": True, "c": "word"}),
    )


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (
            "gpt2:length=8,length=9",
            ConfigurationError,
            "'length=9' in 'gpt2:length=8,length=9' is no setting, or comes",
        ),
        ("gpt2:length=", ConfigurationError, "'length=' in 'gpt2:length=' is no setting"),
        ("gpt2:length=-1", ConfigurationError, "gpt2: length=-1 does not fit; give a whole number above zero"),
        ("gpt2:lenght=8", UnknownName, "no setting of workload 'gpt2' is called 'lenght'; did you mean 'length'"),
        ("gpt2:dtype=bf61", UnknownName, "no dtype of a workload is called 'bf61'; did you mean 'bf16'"),
        ("gpt2:attention=fuse", UnknownName, "no attention of workload 'gpt2' is called 'fuse'; did you mean 'fused'"),
        ("dlrm:skew=much", ConfigurationError, "dlrm: skew='much' does not fit; give a number, zero or more"),
        (
            "alexnet:checkpointing=blocks",
            ConfigurationError,
            "alexnet:checkpointing=blocks has no blocks to checkpoint",
        ),
        ("absent.py:f", TaskError, "there is no file 'absent.py' to take the model 'f' from"),
        ("hf:absent.json", TaskError, "cannot read the configuration 'absent.json'"),
    ],
)
def test_what_is_wrong_with_a_text(text, error, says, workdir):
    with pytest.raises(error) as caught:
        get_workload(text)
    assert says in str(caught.value)


def test_numbers_of_settings():
    defaults = {"skew": 0.0, "lookups": 3}
    assert of_their_kind("x", {"skew": 1}, defaults) == {"skew": 1, "lookups": 3}
    with pytest.raises(ConfigurationError, match="lookups=True does not fit"):
        of_their_kind("x", {"lookups": True}, defaults)


def test_optimizers_and_types_of_a_preset():
    plain, momentum, sgd, short = (
        get_workload(f"dlrm-ddp{more}") for more in ("", ":optimizer=momentum", ":optimizer=sgd", ":dtype=fp16")
    )
    states = [one.optimizer_state for one in (plain, momentum, sgd)]  # that of a bias of one element is left out
    assert states == pytest.approx([1, 1, 0], abs=1e-6)
    assert (plain.update_traffic, sgd.update_traffic) == (momentum.update_traffic, 3)
    assert (short.name, short.dtype, short.element_size, short.num_parameters) == (
        "dlrm-ddp:dtype=fp16",
        "fp16",
        2,
        plain.num_parameters,
    )


@pytest.mark.parametrize("kind", TINY)
def test_configurations_by_file(kind, workdir):
    workload = get_workload(f"hf:{config_file(workdir, kind).name}:length=6")
    assert workload.num_parameters == COUNTS[kind]
    assert workload.source.startswith("config.json") and workload.optimizer_state == pytest.approx(2, abs=0.1)


def test_a_changed_file_is_read_again(workdir):
    file = config_file(workdir, "gpt2")
    before = get_workload("hf:./config.json")
    file.write_text(file.read_text().replace('"n_layer": 2', '"n_layer": 3'))
    assert get_workload("hf:./config.json").num_parameters > before.num_parameters


def test_compare_goes_through_the_motions_of_a_text(workdir, capsys):
    text = f"hf:{config_file(workdir, 'llama').name}:length=6,dtype=bf16_mixed,checkpointing=blocks"
    words = ["compare", "--workload", text, "--cluster", "dgx-a100", "--ranks", "2", "--strategies", "synchronous"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--json"])
    assert not left.value.code
    (told,) = json.loads(capsys.readouterr().out)
    # Gradients are in fp32 on the wire: of two workers each sends all of it once.
    assert told["bytes_sent_per_rank"] == pytest.approx(4 * COUNTS["llama"], rel=0.01)


def test_names_with_and_without_their_owner():
    assert known_config("openai-community/gpt2") is known_config("gpt2") is KNOWN["gpt2"]
    assert known_config("somebody/gpt2") is None


@pytest.mark.parametrize("name", KNOWN)
def test_known_configurations_are_whole(name):
    """Counts of the released models are those of the definitions; nothing is traced."""
    from geartrain.models.hf import _preset

    preset = _preset(KNOWN[name].config, name)
    own = of_their_kind(name, {"length": 8}, preset.settings)
    with torch.device("meta"):
        assert sum(p.numel() for p in preset.model(**own).parameters()) == KNOWN[name].num_parameters


def test_configurations_that_are_not_built_here(workdir):
    with pytest.raises(
        ConfigurationError, match=r"has a shape that is not built here: attention_bias = True, not False"
    ):
        hf_workload(str(config_file(workdir, "llama", attention_bias=True)))
    file = config_file(workdir, "gpt2")
    file.write_text(file.read_text().replace('"n_head": 2, ', ""))
    with pytest.raises(TaskError, match="a gpt2 configuration gives n_head, and this one does not"):
        hf_workload(str(file))
    file.write_text("[1]")
    with pytest.raises(TaskError, match="is no configuration of Hugging Face: it has no model_type"):
        hf_workload(str(file))


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigurationError) as caught:
        get_workload("hf:somebody/something")
    assert "hf:somebody/something needs the package transformers, which is not installed" in str(caught.value)
    assert "pip install geartrain[transformers]" in str(caught.value) and "gpt2-xl" in str(caught.value)


class Scores(nn.Module):
    """What a model of transformers looks like from outside."""

    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__()
        self.config, self.body, self.head = config, nn.Embedding(37, config.width), nn.Linear(config.width, 37)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.body(input_ids)))


def test_with_transformers(monkeypatch):
    config = SimpleNamespace(is_encoder_decoder=False, architectures=["TinyForCausalLM"], width=8)
    asked = []

    def from_pretrained(name, **options):
        asked.append((name, options))
        if name != "somebody/tiny":
            raise OSError("not in the cache")
        return config

    def from_config(given):
        model = Scores(given)
        assert model.head.weight.is_meta
        return model

    monkeypatch.setitem(
        sys.modules,
        "transformers",
        SimpleNamespace(
            __version__="0",
            AutoConfig=SimpleNamespace(from_pretrained=from_pretrained),
            AutoModelForCausalLM=SimpleNamespace(from_config=from_config),
        ),
    )
    workload = get_workload("hf:somebody/tiny:length=5,dtype=bf16")
    assert asked == [("somebody/tiny", {"local_files_only": True})]
    assert (workload.num_parameters, workload.dtype) == (2 * 37 * 8 + 37, "bf16")
    with pytest.raises(UnknownName, match="no cached configuration of transformers is called 'somebody/tony'"):
        get_workload("hf:somebody/tony")


def test_a_model_of_ones_own(own):
    workload = get_workload("own.py:build:width=16,optimizer=adamw,dtype=bf16_mixed")
    assert workload.name == "own.py:build:width=16,optimizer=adamw,dtype=bf16_mixed"
    assert workload.num_parameters == 4 * 16 + 16 + 16 * 2 + 2
    assert (workload.dtype, workload.gradient_dtype) == ("bf16", "fp32")
    assert get_workload("own.py:build").num_parameters == 4 * 8 + 8 + 8 * 2 + 2
    assert get_workload("own.py:bare").num_parameters == 10
    assert get_workload("own.py:looks_at_numbers").num_parameters == 4 * 4 + 4


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("own.py:built", UnknownName, "no function in 'own.py' is called 'built'; did you mean 'build'"),
        ("own.py:nothing", TaskError, "own.py:nothing returned int; it must return a geartrain.Model("),
        ("own.py:build:wide=3", TaskError, "own.py:build cannot be called with wide=3"),
        ("own.py:branches", TaskError, 'own.py:24: "if x.sum() > 0:" decides by the values of a tensor'),
    ],
)
def test_what_is_wrong_with_a_model_of_ones_own(own, text, error, says):
    with pytest.raises(error) as caught:
        get_workload(text)
    assert says in str(caught.value)
