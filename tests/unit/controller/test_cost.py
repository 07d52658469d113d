"""What a million tokens cost stands beside each speed of the status. It decides the GPU product, if asked to."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_situations import condition, edit, launched, probed, until_decided
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import load_status
from memtune.controller import Node, Observed, decide
from memtune.controller.job_knowledge import knowledge_of
from memtune.gpus.gpu import of_product
from memtune.units import GIB

L4 = {"nodes": 1, "gpusPerNode": 1, "gpuProduct": "NVIDIA-L4", "gpuMemory": "8Gi"}
PRICES = {"NVIDIA-L4": 0.5, "NVIDIA-A100-SXM4-80GB": 2.0}


def on_l4(**resources: Any) -> Job:
    return make_job(resources={**L4, **resources})


def begun(job: Job, prices: dict[str, float] | None = None) -> SimulatedCluster:
    """Return a cluster that has predicted a job and probes it."""
    cluster = SimulatedCluster(job, prices=prices or {})
    cluster.reconcile()
    return cluster


def finished(cluster: SimulatedCluster) -> SimulatedCluster:
    """Return the same cluster after its attempt."""
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    return cluster


def cost(price: float, gpus: int, block: dict[str, Any]) -> Any:
    """Return dollars per million tokens at the speed in a block of the status."""
    return pytest.approx(price * gpus / 3600 * 1e6 / block["tokensPerSecond"], rel=1e-5)


def test_the_predicted_cost_follows_from_speed_and_price() -> None:
    cluster = begun(make_job(nodes=2, resources={**L4, "nodes": 2, "gpuHourPrice": 0.75}))
    prediction = cluster.status["prediction"]
    assert cluster.status["gpuHourPrice"] == 0.75
    assert prediction["costPerMillionTokens"] == cost(0.75, 2, prediction)


def test_measurements_replace_predictions() -> None:
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


def test_a_finished_job_keeps_its_price_unless_its_own_changes() -> None:
    cluster = probed(on_l4())
    cluster.prices = {"NVIDIA-L4": 0.5}
    finished(cluster)
    assert cluster.status["gpuHourPrice"] == 0.5
    cluster.prices = {"NVIDIA-L4": 9.0}
    cluster.reconcile()
    assert cluster.status["gpuHourPrice"] == 0.5
    edit(cluster, "resources", gpu_hour_price=1.0)
    assert cluster.status["plan"]["costPerMillionTokens"] == cost(1.0, 1, cluster.status["plan"])


def test_a_job_takes_the_price_of_the_product_it_runs_on() -> None:
    job = make_job(resources={"nodes": 1, "gpusPerNode": 1})
    cluster = SimulatedCluster(job, nodes=(Node("a", "NVIDIA-L4", 23034 * 2**20),), prices=PRICES)
    cluster.reconcile()
    assert (cluster.status["gpuProduct"], cluster.status["gpuHourPrice"]) == ("NVIDIA-L4", 0.5)


H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
SEVERAL = (Node("a", A100), Node("b", H100), Node("c", A100), Node("d", "NVIDIA-GB9000"))


def stalled(prices: dict[str, float], nodes: tuple[Node, ...] = SEVERAL, **resources: Any) -> str:
    """Return the message of a job that may run on several products."""
    job = make_job(resources={"nodes": 1, "gpusPerNode": 1, **resources})
    decision = decide(job, Observed(nodes=nodes, gpu_hour_prices=prices), 1e9)
    (found,) = [each for each in decision.status.conditions if each.type == "Stalled"]
    assert found.reason == "MixedGpus"
    return found.message


def test_costs_on_several_products_are_listed_cheapest_first() -> None:
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


def test_a_declared_gpu_memory_prevents_the_comparison_of_products() -> None:
    assert stalled(PRICES, gpuMemory="8Gi").endswith("name one in resources.gpuProduct")


def by_cost(prices: dict[str, float], nodes: tuple[Node, ...] = SEVERAL, **changes: Any) -> SimulatedCluster:
    """A job that chooses its GPU product by cost."""
    resources = {"nodes": 1, "gpusPerNode": 1, **changes.pop("resources", {})}
    tuning = {"objectives": ["cost"], **changes.pop("tuning", {})}
    job = make_job(resources=resources, tuning=tuning, **changes)
    return SimulatedCluster(job, nodes=nodes, prices=prices, usable_bytes=80 * GIB)


@pytest.mark.parametrize(("prices", "product"), [({H100: 2.0, A100: 1.9}, H100), ({H100: 9.0, A100: 1.9}, A100)])
def test_with_cost_as_objective_a_job_takes_the_product_with_the_cheapest_tokens(
    prices: dict[str, float], product: str
) -> None:
    cluster = by_cost(prices)
    cluster.reconcile()
    status = cluster.status
    assert (status["gpuProduct"], status["gpuHourPrice"], status["phase"]) == (product, prices[product], "Probing")
    (event,) = [each for each in cluster.events if each.startswith("ProductChosen: ")]
    assert event.startswith(f"ProductChosen: the job runs on {product}: {product}: ")
    knowledge = knowledge_of(cluster.job, load_status(status), cluster.nodes)
    assert knowledge.workload.gpu == of_product(product), "what other nodes have is not predicted with"
    assert status["prediction"]["usableBytes"] == knowledge.usable_bytes
    cluster.prices = {H100: 2.0 if product == A100 else 9.0, A100: 1.9}
    cluster.tick(60.0)
    assert cluster.status["gpuProduct"] == product, "it is chosen once"


def test_earlier_measurements_on_the_chosen_product_are_known_before_the_first_probe() -> None:
    cluster = by_cost({H100: 2.0, A100: 1.9})
    cluster.step()
    assert cluster.status["gpuProduct"] == H100
    assert not cluster.status["probes"]


@pytest.mark.parametrize(
    ("prices", "nodes", "resources", "reason", "expected"),
    [
        (
            {},
            SEVERAL,
            {},
            "CostUnknown",
            f"there is no price of {H100}, {A100}: set the operator's gpuHourPrices",
        ),
        ({H100: 2.0}, (Node("d", "NVIDIA-GB9000"),), {}, "CostUnknown", "has a GPU product that MemTune knows"),
        ({H100: 2.0}, None, {}, "CostUnknown", "no nodes can be seen to choose from"),
        (
            {A100: 1.0},
            (Node("a", A100, gpus=1),),
            {"nodes": 2},
            "CostUnknown",
            f"no product has 2 nodes of 1 GPU: there are {A100}",
        ),
        ({H100: 2.0}, SEVERAL, {"memoryShare": "50%"}, "CostUnknown", "there is no price of"),
    ],
)
def test_without_a_price_or_a_product_cost_is_refused_in_one_sentence(
    prices: dict[str, float],
    nodes: tuple[Node, ...] | None,
    resources: dict[str, Any],
    reason: str,
    expected: str,
) -> None:
    job = by_cost(prices, resources=resources).job
    decision = decide(job, Observed(nodes=nodes, gpu_hour_prices=prices), 1e9)
    (found,) = [each for each in decision.status.conditions if each.type == "Stalled"]
    assert found.reason == reason
    assert found.message.startswith("tuning.objectives has cost, and ")
    assert expected in found.message
    assert not decision.status.probes


def test_a_product_whose_nodes_have_too_few_gpus_is_not_chosen() -> None:
    """The choice is not taken back, so that the job would wait for such nodes for ever."""
    nodes = (Node("a", A100, gpus=1), Node("b", H100, gpus=8))
    prices = {A100: 0.1, H100: 9.0}
    job = by_cost(prices, resources={"gpusPerNode": 2}).job
    assert decide(job, Observed(nodes=nodes, gpu_hour_prices=prices), 1e9).status.gpu_product == H100


def test_where_no_plan_fits_at_a_known_price_nothing_is_chosen() -> None:
    training = {"globalBatchSize": 1, "sequenceLength": 1_000_000}
    cluster = by_cost({A100: 1.9}, training=training)
    cluster.reconcile()
    message = condition(cluster, "Stalled")["message"]
    assert message.startswith("tuning.objectives has cost, and no plan fits where the price is known: ")


def test_a_product_on_which_plans_may_fit_comes_after_one_on_which_a_plan_is_sure_to() -> None:
    close = {"globalBatchSize": 1, "sequenceLength": 200_000}
    small, prices = "NVIDIA-A100-SXM4-40GB", {"NVIDIA-A100-SXM4-40GB": 0.1, H100: 9.0}
    cluster = by_cost(prices, nodes=(Node("a", small), Node("b", H100)), training=close)
    cluster.reconcile()
    assert cluster.status["gpuProduct"] == H100
    alone = by_cost(prices, nodes=(Node("a", small),), training=close)
    alone.reconcile()
    assert alone.status["gpuProduct"] == small
    assert any(f"{small}: " in event and ", if it fits" in event for event in alone.events)


def test_one_price_for_all_products_makes_the_fastest_the_cheapest() -> None:
    cluster = by_cost({}, resources={"gpuHourPrice": 3})
    cluster.reconcile()
    assert cluster.status["gpuProduct"] == H100


def test_with_memory_beside_cost_there_is_a_front() -> None:
    cluster = by_cost({H100: 2.0, A100: 1.9}, tuning={"objectives": ["cost", "memory"], "slack": "5%"})
    # The truth is that of the product that the job will choose.
    cluster.key = SimulatedCluster(make_job(resources={"nodes": 1, "gpusPerNode": 1, "gpuProduct": H100})).key
    until_decided(cluster, cluster.finish)
    assert cluster.status["gpuProduct"] == H100
    assert cluster.status["front"]
    assert "as the smallest within 5% of the fastest" in condition(cluster, "Tuned")["message"]
