"""What a million tokens cost stands beside each speed of the status, and decides nothing."""

from __future__ import annotations

from typing import Any

import pytest
from decided import condition, edit, launched, probed
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.controller import Node, Observed, decide

L4 = {"nodes": 1, "gpusPerNode": 1, "gpuProduct": "NVIDIA-L4", "gpuMemory": "8Gi"}
PRICES = {"NVIDIA-L4": 0.5, "NVIDIA-A100-SXM4-80GB": 2.0}


def on_l4(**resources: Any) -> Job:
    return make_job(resources={**L4, **resources})


def begun(job: Job, prices: dict[str, float] | None = None) -> SimulatedCluster:
    """A cluster that has predicted a job and probes it."""
    cluster = SimulatedCluster(job, prices=prices or {})
    cluster.reconcile()
    return cluster


def finished(cluster: SimulatedCluster) -> SimulatedCluster:
    """The same cluster once the train run has come to its end."""
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    return cluster


def cost(price: float, gpus: int, block: dict[str, Any]) -> Any:
    """Dollars per million tokens at the speed that a block of the status tells."""
    return pytest.approx(price * gpus / 3600 * 1e6 / block["tokensPerSecond"], rel=1e-5)


def test_a_prediction_costs_what_its_speed_makes_of_the_price() -> None:
    cluster = begun(make_job(nodes=2, resources={**L4, "nodes": 2, "gpuHourPrice": 0.75}))
    prediction = cluster.status["prediction"]
    assert cluster.status["gpuHourPrice"] == 0.75
    assert prediction["costPerMillionTokens"] == cost(0.75, 2, prediction)


def test_what_was_measured_replaces_what_was_predicted() -> None:
    cluster = finished(probed(on_l4(gpuHourPrice=0.75)))
    plan = cluster.status["plan"]
    assert plan["tokensPerSecond"] == cluster.status["attempts"][-1]["tokensPerSecond"]
    assert plan["costPerMillionTokens"] == cost(0.75, 1, plan)


def test_without_a_price_there_is_no_cost() -> None:
    cluster = finished(probed(on_l4()))
    assert "gpuHourPrice" not in cluster.status
    assert "costPerMillionTokens" not in {**cluster.status["plan"], **cluster.status["prediction"]}


def test_a_virtual_gpu_has_no_price() -> None:
    virtual = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "device": "virtual", "gpuHourPrice": 2}
    cluster = begun(make_job(resources=virtual))
    assert "gpuHourPrice" not in cluster.status


def test_the_operator_knows_the_price_of_a_product() -> None:
    assert begun(on_l4(), PRICES).status["gpuHourPrice"] == 0.5
    assert begun(on_l4(gpuHourPrice=0.25), PRICES).status["gpuHourPrice"] == 0.25, "the job's own wins"
    assert "gpuHourPrice" not in begun(on_l4(gpuProduct="NVIDIA-A10"), PRICES).status


@pytest.mark.parametrize("part", [{"memoryShare": "50%"}, {"gpuResource": "nvidia.com/mig-1g.10gb"}])
def test_a_part_of_a_gpu_does_not_have_the_price_of_the_whole(part: dict[str, Any]) -> None:
    assert "gpuHourPrice" not in begun(on_l4(**part), PRICES).status
    assert begun(on_l4(**part, gpuHourPrice=0.1), PRICES).status["gpuHourPrice"] == 0.1


def test_the_price_decides_nothing() -> None:
    priced, free = (finished(probed(on_l4(**price))).status for price in ({"gpuHourPrice": 9}, {}))
    for status in (priced, free):
        status.pop("gpuHourPrice", None)
        status["fixed"] = [each for each in status["fixed"] if "generation" not in each]
        for block in ("prediction", "plan"):
            status[block].pop("costPerMillionTokens", None)
    assert priced == free


def test_a_price_may_come_change_and_go_while_the_job_trains() -> None:
    cluster = launched(on_l4())
    runs = cluster.runs()
    for price in (1.0, 2.0):
        edit(cluster, "resources", gpu_hour_price=price)
        assert cluster.status["plan"]["costPerMillionTokens"] == cost(price, 1, cluster.status["plan"])
        assert condition(cluster, "Stalled")["status"] != "True"
    edit(cluster, "resources", gpu_hour_price=None)
    assert "gpuHourPrice" not in cluster.status
    assert cluster.runs() == runs


def test_a_job_that_is_over_keeps_the_price_it_ended_with_unless_its_own_changes() -> None:
    cluster = probed(on_l4())
    cluster.prices = {"NVIDIA-L4": 0.5}
    finished(cluster)
    assert cluster.status["gpuHourPrice"] == 0.5
    cluster.prices = {"NVIDIA-L4": 9.0}
    cluster.reconcile()
    assert cluster.status["gpuHourPrice"] == 0.5
    edit(cluster, "resources", gpu_hour_price=1.0)
    assert cluster.status["plan"]["costPerMillionTokens"] == cost(1.0, 1, cluster.status["plan"])


def test_a_job_that_met_its_product_has_that_price() -> None:
    job = make_job(resources={"nodes": 1, "gpusPerNode": 1})
    cluster = SimulatedCluster(job, nodes=(Node("a", "NVIDIA-L4", 23034 * 2**20),), prices=PRICES)
    cluster.reconcile()
    assert (cluster.status["gpuProduct"], cluster.status["gpuHourPrice"]) == ("NVIDIA-L4", 0.5)


H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
SEVERAL = (Node("a", A100), Node("b", H100), Node("c", A100), Node("d", "NVIDIA-GB9000"))


def stalled(prices: dict[str, float], nodes: tuple[Node, ...] = SEVERAL, **resources: Any) -> str:
    """What a job says that may run on several products."""
    job = make_job(resources={"nodes": 1, "gpusPerNode": 1, **resources})
    decision = decide(job, Observed(nodes=nodes, gpu_hour_prices=prices), 1e9)
    (found,) = [each for each in decision.status.conditions if each.type == "Stalled"]
    assert found.reason == "MixedGpus"
    return found.message


def test_a_job_that_may_run_on_several_products_is_told_what_each_costs_the_cheapest_first() -> None:
    message = stalled({H100: 2.0, A100: 1.9})
    begin, _, predicted = message.partition(" (predicted: ")
    assert begin.endswith(f"different GPUs: {A100}, NVIDIA-GB9000, {H100}; name one in resources.gpuProduct")
    offers = predicted.removesuffix(")").split("; ")
    assert [offer.partition(":")[0] for offer in offers] == [H100, A100]
    speeds = [float(offer.split()[1].replace(",", "")) for offer in offers]
    costs = [float(offer.partition("$")[2].split()[0]) for offer in offers]
    assert costs == [pytest.approx(p / 3600 * 1e6 / s, rel=0.01) for p, s in zip((2.0, 1.9), speeds, strict=True)]
    assert stalled({H100: 9.0, A100: 1.9}).partition("predicted: ")[2].startswith(A100)
    assert "$" not in stalled({})


def test_more_products_than_a_message_has_room_for_are_counted() -> None:
    products = (H100, A100, "NVIDIA-L4", "NVIDIA-A10G", "NVIDIA-H200", "Tesla-T4")
    nodes = tuple(Node(str(number), product) for number, product in enumerate(products))
    assert stalled({}, nodes).endswith("; and 2 more)")


def test_where_the_job_says_what_its_gpus_have_the_products_are_not_compared() -> None:
    assert stalled(PRICES, gpuMemory="8Gi").endswith("name one in resources.gpuProduct")
