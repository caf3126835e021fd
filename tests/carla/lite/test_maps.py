import pytest

from mcnn_ray.carla.lite.maps import available_maps, find_map
from mcnn_ray.errors import ConfigError
from tests.tools import make_maps


def test_packaged_maps_are_what_the_tool_writes(tmp_path):
    make_maps.highway(tmp_path)
    make_maps.town(tmp_path)
    assert available_maps() == sorted(file.stem for file in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        assert find_map(file.stem)[1] == file.read_text(encoding="utf-8")


def test_misspelled_map_is_answered_with_the_right_name():
    with pytest.raises(ConfigError, match="did you mean 'HighwayLoop'"):
        find_map("HighwayLop")
