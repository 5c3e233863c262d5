from dataclasses import replace

from geartrain.report.reading import Run
from geartrain.report.words import about, facets, headline

FAST = Run(
    strategy="synchronous",
    engine="simulated",
    cluster="ethernet-1g",
    workers=4,
    subject="digits",
    batch=100,
    step_time=0.010,
    compute=0.002,
    exposed=0.008,
    wait=0.0,
    busiest=1e6,
    messages=6,
    closed_form=0.010,
)
SLOW = replace(FAST, strategy="parameter_server", step_time=0.030, exposed=0.026, wait=0.002, busiest=4e6)


def words(*runs):
    return [sentence for group in headline(runs) for sentence in group]


def test_the_winner_and_why():
    first, lead, bound, forms = words(SLOW, FAST)
    assert first == ("On ethernet-1g with 4 workers, synchronous wins with 10 ms a step (10,000 samples per second).")
    assert lead == (
        "parameter_server takes 3 times as long: 90% of the difference of 20 ms is exposed communication; "
        "its busiest rank sends 4 MB a step instead of 1 MB."
    )
    assert bound == (
        "What bounds the step of synchronous is communication that nothing hides: 80.0% of it "
        "(computing 20.0%, waiting for other ranks 0.0%)."
    )
    assert "at most 200.0% (parameter_server" in forms


def test_messages_are_the_reason_where_bytes_are_equal():
    chatty = replace(FAST, strategy="peer_to_peer", step_time=0.020, exposed=0.018, messages=14)
    assert "a worker sends 14 messages a step instead of 6" in words(FAST, chatty)[1]


def test_equal_speeds_have_no_winner():
    first = words(FAST, replace(FAST, strategy="ring", step_time=0.0102))[0]
    assert "with no clear lead over ring" in first


def test_of_many_equals_three_are_named():
    equals = [replace(FAST, strategy=f"s{i}") for i in range(6)]
    assert "no clear lead over s0 and s1 and s2 and 3 more." in words(FAST, *equals)[0]


def test_a_run_that_was_cut_short_cannot_win():
    cut = replace(FAST, strategy="ring", step_time=0.001, error="interrupted")
    assert words(SLOW, cut)[0].startswith("On ethernet-1g with 4 workers, parameter_server takes 30 ms a step")


def test_another_batch_is_compared_by_the_sample():
    double = replace(FAST, strategy="large", batch=400, step_time=0.020)
    first, lead, *_ = words(FAST, double)
    assert "large wins" in first
    assert lead.startswith("synchronous takes 2 times as long")


def test_closed_forms_that_are_met():
    assert words(FAST)[-1] == "All step times equal their closed forms to within 0.05 %."


def test_nothing_bounds_an_even_step():
    even = replace(FAST, compute=0.004, exposed=0.003, wait=0.003)
    assert any(sentence.startswith("Nothing bounds the step") for sentence in words(even))


def test_who_reaches_the_target_first():
    runs = [replace(FAST, time_to_target=3.0), replace(SLOW, time_to_target=2.0)]
    assert "parameter_server with 4 workers is the first at the target, after 2 s; 2 of 2 runs reach it." in words(
        *runs
    )


def test_failures_are_told():
    lost = replace(FAST, strategy="ring", step_time=None, error="RankFailed")
    assert "1 of 2 runs failed or ended early: ring (reasons below the table)." in words(FAST, lost)
    assert "2 of 3 runs failed or ended early: ring (2 times) (reasons below the table)." in words(FAST, lost, lost)


def test_nothing_to_compare():
    assert words(replace(FAST, step_time=None))[0] == "No run came far enough to compare."


def test_facets_are_named_by_what_varies():
    real = replace(FAST, engine="real", cluster="local")
    assert [facet.title for facet in facets([FAST, SLOW])] == [""]
    assert [facet.title for facet in facets([FAST, real])] == ["ethernet-1g, simulated", "local, real"]
    lost = Run(strategy="ring", engine="real", cluster="local", workers=4)
    assert [len(facet.runs) for facet in facets([FAST, real, lost])] == [1, 2]


def test_one_line_on_what_was_run():
    assert about([replace(FAST, raw={"virtual": True})]) == "digits on ethernet-1g, simulated engine (virtual time)"
