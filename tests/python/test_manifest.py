"""The DaemonSet of kvpool-containers(7): by the schema of Kubernetes, and with options that the daemon has."""
import re
import subprocess

import pytest

from conftest import BUILD, TOP

yaml = pytest.importorskip("yaml")


@pytest.fixture
def documents():
    page = (TOP / "client" / "python" / "kvpool-containers.7").read_text()
    text = page[page.index("apiVersion:"):]
    return list(yaml.safe_load_all(text[:text.index("\n.fi")].replace("\\-", "-")))


def test_the_manifest_is_what_kubernetes_takes(documents):
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(documents[0], validate.latest_version(), strict=True)
    documents[0]["spec"]["templates"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(documents[0], validate.latest_version(), strict=True)


def test_the_manifest_mounts_what_its_daemon_uses_and_its_engines_look_for(documents):
    pod, engine = documents[0]["spec"]["template"]["spec"], documents[1]
    container, = pod["containers"]
    for place in (pod, engine):
        volumes = {volume["name"] for volume in place["volumes"]}
        assert {mount["name"] for mount in place["containers"][0]["volumeMounts"]} == volumes
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    options = dict(zip(container["args"][::2], container["args"][1::2]))
    assert mounts == {options["--socket"].rpartition("/")[0], options["--spill"].partition(":")[0]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert engine["volumes"][0]["hostPath"]["path"] == paths["run"] == engine["containers"][0]["volumeMounts"][0]["mountPath"]
    known = subprocess.run([str(BUILD / "kvpoold"), "--help"], capture_output=True, text=True).stdout
    assert all(re.search(rf"^\s*{option}\b", known, re.M) for option in options), options
    assert documents[0]["spec"]["selector"]["matchLabels"].items() <= documents[0]["spec"]["template"]["metadata"]["labels"].items()
