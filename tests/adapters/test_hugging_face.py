import pytest
import torch

from mnemoscope import examine
from mnemoscope.adapters import adapt

transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")


@pytest.fixture(params=["Mamba", "xLSTM"])
def model(request):
    name = f"{request.param}ForCausalLM"
    if not hasattr(transformers, name):
        pytest.skip(f"this version of transformers has no {name}")
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_heads": 2} if request.param == "xLSTM" else {"state_size": 4}
    config = getattr(transformers, f"{request.param}Config")(**sizes)
    return getattr(transformers, name)(config).eval()


def test_hugging_face_ids_are_embedded(model):
    ids = torch.randint(0, 20, (3, 12))
    found = adapt(model, ids)
    wanted = model(ids, use_cache=False).logits.transpose(0, 1)
    torch.testing.assert_close(found.run(found.features), wanted, atol=1e-5, rtol=1e-4)


def test_hugging_face_scopes_of_outputs(model):
    found = examine(model, torch.randint(0, 20, (3, 12)), scopes=["recurrence", "horizon", "stability"])
    assert found["recurrence"].labels["kind"] == "recurrent"
    assert found["horizon"].status == "estimated"
    assert found["stability"].status == "not applicable"
    assert "cache" in found["stability"].why
