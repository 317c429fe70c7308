import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("pip_settings", ROOT / "scripts" / "pip_settings.py")
assert SPEC is not None and SPEC.loader is not None
pip_settings = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pip_settings)


def test_parse_takes_environment_over_install_over_global():
    listed = "\n".join(
        [
            ":env:.find-links='/from/environment'",
            "global.find-links='/from/global'",
            "global.timeout='10'",
            "install.timeout='20'",
            ":env:.default-timeout='30'",
            "freeze.timeout='40'",
        ]
    )
    assert pip_settings.parse(listed) == {"find-links": "/from/environment", "timeout": "30"}


def test_configuration_keeps_where_packages_come_from_and_nothing_else():
    text = pip_settings.configuration(
        {
            "extra-index-url": "https://a.example/simple https://b.example/simple",
            "cert": "/etc/some.crt",
            "constraint": "/etc/constraints.txt",
            "user": "true",
        }
    )
    assert text == (
        "[global]\n"
        "extra-index-url = \n    https://a.example/simple\n    https://b.example/simple\n"
        "cert = /run/secrets/ca.crt\n"
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param("find-links", "{0}/wheels", ["{0}/wheels"], id="a folder of wheels"),
        pytest.param("find-links", "file://{0}/wheels", ["{0}/wheels"], id="a folder as a URL"),
        pytest.param("index-url", "file://{0}/wheels/simple", ["{0}/wheels"], id="an index and its files"),
        pytest.param("find-links", "https://a.example/wheels", [], id="something elsewhere"),
        pytest.param("find-links", "{0}/missing", [], id="a folder that is not there"),
    ],
)
def test_local_folders_of(key, value, expected, tmp_path):
    (tmp_path / "wheels" / "simple").mkdir(parents=True)
    settings = {key: value.format(tmp_path)}
    assert pip_settings.local_folders(settings) == [folder.format(tmp_path) for folder in expected]
