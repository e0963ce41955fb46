"""Converted models in tools that people use; by `nox -s models`, which installs them."""

from __future__ import annotations

import copy
import os

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

pytestmark = [
    pytest.mark.skipif("NORMGRAD_MODELS" not in os.environ, reason="by nox -s models"),
    pytest.mark.filterwarnings("ignore"),  # of the tools
]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.GroupNorm(2, 4)
    )


def images():
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_opacus_finds_and_fixes_converted_batch_norms(library):
    validators = library("opacus.validators").ModuleValidator
    stock = network()
    ours = nt.convert(copy.deepcopy(stock))
    errors = [validators.validate(model, strict=False) for model in (ours, stock)]
    assert [type(each) for each in errors[0]] == [type(each) for each in errors[1]]
    assert len(errors[0]) == 1
    fixed = validators.fix(ours)
    assert type(fixed[1]) is torch.nn.GroupNorm
    assert validators.validate(fixed, strict=False) == []


@pytest.mark.parametrize(
    "norm",
    [
        torch.nn.GroupNorm(2, 4),
        torch.nn.LayerNorm([4, 6, 6]),
        torch.nn.InstanceNorm2d(4, affine=True),
        torch.nn.RMSNorm([6]),
    ],
)
def test_opacus_takes_each_sample_s_gradients(norm, library):
    module = library("opacus").GradSampleModule
    found = []
    for convert in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), copy.deepcopy(norm))
        if convert:
            nt.convert(model)
        module(model)(images()).square().sum().backward()
        found.append(model[1].weight.grad_sample)
    assert len(found[1]) == 8
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


def test_lightning_trains_converted_models(library):
    lightning = library("lightning")

    class Training(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nt.convert(network())

        def training_step(self, batch, index):
            return self.network(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Training()
    before = module.network[1].weight.detach().clone()
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    batches = torch.utils.data.TensorDataset(images())
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=4))
    assert int(module.network[1].num_batches_tracked) == 2
    assert not torch.equal(module.network[1].weight, before)


def test_accelerate_prepares_converted_models(library):
    accelerate = library("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = nt.convert(network())
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    before = model[1].weight.detach().clone()
    prepared, optimiser = accelerator.prepare(model, optimiser)
    accelerator.backward(prepared(images()).square().mean())
    optimiser.step()
    assert accelerator.unwrap_model(prepared) is model
    assert not torch.equal(model[1].weight, before)
    with accelerate.init_empty_weights():
        empty = nt.convert(network())
    assert set(nt.converted(empty).layers) == {"torch.nn.BatchNorm2d", "torch.nn.GroupNorm"}
    assert empty[1].weight.is_meta
