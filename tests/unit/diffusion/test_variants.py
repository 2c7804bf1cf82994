from sfumato_diffusion.conditioning.variants import VariantDraw, draw_variants


def _draw(**changes: object) -> tuple[VariantDraw, ...]:
    arguments = {
        "seed": 1, "image_digest": "a", "count": 8, "center_crop": False, "random_flip": True,
    } | changes  # fmt: skip
    return draw_variants(**arguments)  # type: ignore[arg-type]


def test_draws_follow_seed_and_picture() -> None:
    assert _draw() == _draw()
    assert _draw() != _draw(seed=2)
    assert _draw() != _draw(image_digest="b")
    assert _draw()[:4] == _draw(count=4)
    assert {draw.flip for draw in _draw()} == {True, False}


def test_centre_crop_and_no_flip_collapse() -> None:
    centred = _draw(center_crop=True, random_flip=False)
    assert set(centred) == {VariantDraw(u_left=0.5, u_top=0.5, flip=False)}
    assert {draw.flip for draw in _draw(center_crop=True)} == {True, False}
