"""Errors of wrong images and wrong sites."""

import pytest
import torch
from backbones import LOOSE, RESNET, SMALL, TRANSFORMERS, VIT, Custom, randomise_heads, vit
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import Canonicalizer, DECConfig, Site, SizeNetwork, adapt, sites
from localscale.errors import ConfigError, ConvergenceWarning, LocalScaleError, ShapeError, SiteError


def refused(error: type[LocalScaleError], call, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# Images


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 64, 64, 3), (2, 1, 64, 64), (5,)])
def test_wrong_rank_or_channels(shape: tuple[int, ...]):
    message = refused(ShapeError, VIT.adapted(), torch.zeros(shape))
    assert message == f"images have shape {shape}; expected (batch, 3, height, width)"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_integer_images(dtype: torch.dtype):
    message = refused(ShapeError, VIT.adapted(), torch.zeros(2, 3, 64, 64, dtype=dtype))
    assert message.startswith(f"images have dtype {dtype}; expected floating-point images")


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((None,), {}), ((), {"pixel_values": None})])
def test_no_image(args: tuple, kwargs: dict):
    message = refused(ShapeError, VIT.adapted(), *args, **kwargs)
    assert message == "the model was called without an image tensor; expected a (batch, channels, height, width) tensor"


@pytest.mark.parametrize("sites", [("input",), ("blocks.0",)])
def test_wrong_size_for_a_fixed_size_model(sites: tuple[str, ...]):
    message = refused(ShapeError, VIT.adapted(sites=sites), torch.zeros(1, 3, 96, 64))
    assert message.startswith("VisionTransformer did not take 96×64 images (")
    assert message.endswith("; it was adapted with 64×64")


def test_wrong_size_for_transformers():
    model = TRANSFORMERS["transformers ViT"].adapted()
    message = refused(ShapeError, model, torch.zeros(1, 3, 64, 32))
    assert message == (
        "ViTForImageClassification did not take 64×32 images (Input image size (64*32) doesn't match model (32*32).); "
        "it was adapted with 32×32"
    )


@pytest.mark.parametrize(("weights", "images"), [("half", "float"), ("float", "half"), ("float", "double")])
def test_images_of_another_precision(weights: str, images: str):
    model = getattr(VIT.adapted(), weights)()
    batch = getattr(VIT.images(), images)()
    wanted = next(model.base.parameters()).dtype
    message = refused(ShapeError, model, batch)
    assert message == (
        f"images are {batch.dtype} and VisionTransformer is {wanted}; "
        f"call it with images.to({wanted}), or inside torch.autocast"
    )
    assert model(batch.to(wanted)).isfinite().all(), "the advice helps"


def test_disabled_models_check_their_images_too():
    model = VIT.adapted()
    with model.disabled():
        assert "images have shape (3, 64, 64)" in refused(ShapeError, model, torch.zeros(3, 64, 64))


def test_an_empty_batch():
    message = refused(ShapeError, VIT.adapted(), torch.zeros(0, 3, 64, 64))
    assert message.endswith("expected floating point, and at least one image of at least 1×1 pixels")


@pytest.mark.parametrize(
    ("value", "where", "settings"),
    [
        (torch.nan, "pixel", {}),
        (torch.inf, "image", {}),
        (torch.nan, "image", {"source": "image"}),
        (-torch.inf, "pixel", {"update": "compose", "family": "separable"}),
    ],
)
def test_one_broken_image_does_not_spoil_the_others(value: float, where: str, settings: dict[str, str]):
    settings = {"sites": ("input", "blocks.0"), "max_steps": 40, "tolerance": 3e-2} | settings
    model, images = randomise_heads(VIT.adapted(**settings), std=0.1), VIT.images(3)
    broken = images.clone()
    broken[(1, 0, 30, 30) if where == "pixel" else 1] = value
    with torch.no_grad():
        expected, clean = model(images, return_report=True)
        with pytest.warns(ConvergenceWarning, match="fixed points stopped above the tolerance"):
            answer, report = model(broken, return_report=True)
    others = [0, 2]
    torch.testing.assert_close(answer[others], expected[others], atol=1e-6, rtol=0)
    assert not answer[1].isfinite().all(), "a broken image gets no made-up answer"
    for path, site in report.items():
        torch.testing.assert_close(site.map.state()[others], clean[path].map.state()[others], atol=1e-6, rtol=0)
        assert site.map.state().isfinite().all()
        assert site.converged.tolist() == [True, False, True]
        assert site.map.mean_displacement()[1] == 0, "a lost map is the identity"


def test_one_broken_image_does_not_spoil_the_gradients_of_the_others():
    model, images = randomise_heads(VIT.adapted(**LOOSE)), VIT.images(3)
    images.requires_grad_()
    broken = torch.where(torch.arange(3).view(3, 1, 1, 1) == 1, torch.nan, images)
    with pytest.warns(ConvergenceWarning):
        answer = model(broken)
    (gradient,) = torch.autograd.grad(answer[[0, 2]].square().sum(), images)
    (expected,) = torch.autograd.grad(model(images)[[0, 2]].square().sum(), images)
    torch.testing.assert_close(gradient[[0, 2]], expected[[0, 2]], atol=1e-5, rtol=0)


# Sites


def test_unknown_block():
    message = refused(SiteError, adapt, vit(depth=12), DECConfig(sites=("blocks.12",)))
    assert message == 'no module "blocks.12" in VisionTransformer (blocks.0 … blocks.11 exist)'


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("block.0", "did you mean blocks.0, "),
        ("layer_1", "did you mean layer1"),
        ("zzz", "known: input, "),
        ("", "known: input, "),
        ("inputs", "did you mean input?"),
    ],
)
def test_unknown_site_with_a_near_miss(path: str, hint: str):
    base = RESNET.build() if path == "layer_1" else VIT.build()
    message = refused(SiteError, adapt, base, DECConfig(sites=(path,)))
    assert message.startswith(f'no module "{path}" in {type(base).__name__} ({hint}')


def test_a_refused_site_leaves_the_model_as_it_was():
    base = VIT.build()
    modules = dict(base.named_modules())
    for wrong in ("blocks.7", "head"):
        refused(SiteError, adapt, base, DECConfig(sites=("input", "blocks.0", wrong)))
        assert dict(base.named_modules()) == modules
    adapt(base, DECConfig(sites=("blocks.0",)))


def test_a_site_without_image_features():
    message = refused(SiteError, adapt, VIT.build(), DECConfig(sites=("head",)))
    assert message == (
        "head takes a tensor of shape (2, 48) for two 64×64 images, which is neither NCHW, NHWC nor tokens; "
        'give Site("head", layout=…) if it is'
    )


class Bias(nn.Module):
    """A module without input that returns a learned constant."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(4))

    def forward(self, scale: float = 1.0) -> Tensor:
        return scale * self.value


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bias, self.idle = nn.Conv2d(3, 4, 3), Bias(), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean(dim=(2, 3)) + self.bias(scale=2.0)


@pytest.mark.parametrize("path", ["bias", "idle"])
def test_a_site_that_takes_no_features_or_is_never_reached(path: str):
    message = refused(SiteError, adapt, Biased(), DECConfig(sites=(path,)), input_size=(3, 16, 16))
    assert message.startswith(f"{path} was not called with a tensor when the model ran on a blank image")


def test_a_described_site_that_takes_no_features():
    site = Site("bias", layout="NCHW", channels=4)
    model = adapt(Biased(), DECConfig(sites=(site,)), input_size=(3, 16, 16))
    message = refused(SiteError, model, torch.zeros(1, 3, 16, 16))
    assert message.startswith("bias was called without a tensor; ")


def test_a_described_site_of_other_strides():
    site = Site("trunk.body", layout="tokens", channels=6, prefix=1, stride=(4, 4))
    model = adapt(Custom("tokens", stride=(4, 8), prefix=1), DECConfig(sites=(site,)), input_size=(3, 32, 48))
    message = refused(SiteError, model, torch.zeros(1, 3, 32, 48))
    assert message == (
        "trunk.body got 49 tokens for a 32×48 image; with stride (4, 4) and 1 prefix tokens expected 8×12 patches. "
        'Give Site("trunk.body", layout="tokens", prefix=…, stride=…) the true values'
    )


def test_a_described_site_of_other_channels():
    site = Site("trunk.body", layout="NCHW", channels=7)
    model = adapt(Custom("NCHW"), DECConfig(sites=(site,)), input_size=(3, 32, 32))
    message = refused(ShapeError, model, torch.zeros(1, 3, 32, 32))
    assert message == "features have shape (1, 6, 8, 8); expected (batch, 7, height, width)"


def test_a_number_of_tokens_that_fits_no_patch_size():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.flatten(2).transpose(1, 2)[:, :37])

    message = refused(SiteError, adapt, Odd(), DECConfig(sites=("body",)), input_size=(3, 16, 16))
    assert message == (
        "body takes 37 tokens for 16×16 images, which fits no patch size; "
        'give Site("body", layout="tokens", prefix=…, stride=(…, …))'
    )


@pytest.mark.parametrize("use", [lambda m: adapt(m, DECConfig(sites=("blocks.0",)), input_size=(3, 70, 64)), None])
def test_a_model_that_does_not_run_on_the_blank_image(use):
    message = refused(SiteError, use or (lambda m: sites(m, (3, 70, 64))), VIT.build())
    assert message.startswith("VisionTransformer did not run on a blank 3×70×64 image (")
    assert message.endswith("; pass input_size=(channels, height, width), or give each Site its layout and channels")


class Neck(nn.Module):
    """A module that returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"feature": self.conv(x)}


@pytest.mark.parametrize(("path", "kind"), [("global_pool", "(2, 96)"), ("1", "dict")])
def test_an_equivariant_site_without_pixels_to_scale_back(path: str, kind: str):
    base = RESNET.build() if path == "global_pool" else nn.Sequential(nn.Conv2d(3, 3, 1), Neck())
    model = RESNET.adapted(base, sites=(path,), mode="equivariant")
    message = refused(SiteError, model, RESNET.images())
    assert message == f'{path} returned {kind}, which has no pixels to scale back; use mode="invariant" there'


class Bag(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :7]


def test_an_equivariant_site_that_drops_tokens():
    base = vit()
    base.blocks[1] = nn.Sequential(Bag())
    model = adapt(base, dec_config(sites=("blocks.1",), mode="equivariant", **SMALL))
    message = refused(SiteError, model, VIT.images())
    assert message == (
        "blocks.1 took (2, 17, 48) and returned (2, 7, 48); expected the same layout with the same pixels, "
        'or half as many per side, to scale back; use mode="invariant" there'
    )


# Moments


@pytest.mark.parametrize("sites", [("input",), ("blocks.0",)])
def test_adapting_twice(sites: tuple[str, ...]):
    model = VIT.adapted(sites=sites)
    message = refused(SiteError, adapt, model)
    assert message == "this AdaptedModel is already adapted; call unwrap() first"
    if sites == ("blocks.0",):
        message = refused(SiteError, adapt, model.base)
        assert message == "this VisionTransformer is already adapted; call unwrap() first"
    adapt(model.unwrap())


@pytest.mark.parametrize("thing", ["vit_tiny", None, lambda x: x, nn.Conv2d])
def test_adapting_something_else(thing: object):
    message = refused(SiteError, adapt, thing)
    assert message == f"cannot adapt a {type(thing).__name__}; expected a torch.nn.Module"


@pytest.mark.parametrize("sites", [("input",), ("blocks.0",)])
def test_forward_after_unwrap(sites: tuple[str, ...]):
    model = VIT.adapted(sites=sites)
    model.unwrap()
    message = refused(SiteError, model, VIT.images())
    assert message.startswith("this adapted model was unwrapped; ")


@pytest.mark.parametrize("size", [32, (3, 0, 0), (3, 32), (3, 32.5, 32), "chw", (3, -32, 32), (True, 32, 32)])
def test_an_input_size_that_is_none(size: object):
    for call in (adapt, sites):
        wanted = {"input_size": size}
        message = refused(ConfigError, call, nn.Sequential(nn.Conv2d(3, 4, 3)), **wanted)
        assert message == f"input_size is {size!r}; expected (channels, height, width), such as (3, 224, 224)"


@pytest.mark.parametrize("where", ["input", "blocks.0"])
@pytest.mark.parametrize("size", [(0, 0), (0, 64), (64, 0)])
def test_images_without_pixels(where: str, size: tuple[int, int]):
    message = refused(ShapeError, VIT.adapted(sites=(where,)), torch.zeros(2, 3, *size))
    assert message.startswith(f"images have shape {(2, 3, *size)}, so no pixels; expected (batch, 3, height, width)")


def test_images_on_another_device():
    message = refused(ShapeError, VIT.adapted(), torch.zeros(2, 3, 64, 64, device="meta"))
    assert message == 'images are on meta and VisionTransformer is on cpu; call it with images.to("cpu")'


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (0, 3, 4, 4)])
def test_a_canonicalizer_of_nothing(shape: tuple[int, ...]):
    message = refused(ShapeError, Canonicalizer(3, (4, 4), DECConfig()), torch.zeros(shape))
    assert message.endswith("at least one image of at least 1×1 pixels")


def test_features_on_another_device():
    message = refused(ShapeError, Canonicalizer(3, (4, 4), DECConfig()), torch.zeros(1, 3, 8, 8, device="meta"))
    assert message == "features are on meta and the canonicalizer on cpu; move one with .to(device)"


def test_a_single_pixel_with_one_channel_per_group():
    """A group norm of one value is 0, which PyTorch's function refuses."""
    config = DECConfig(network=SizeNetwork(width=8, blocks=1, resolution=8))
    assert Canonicalizer(3, (4, 4), config)(torch.rand(1, 3, 1, 1)).map.state().isfinite().all()
