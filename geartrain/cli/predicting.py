"""`geartrain predict`: ask every cell, explain each, print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from geartrain.cli.output import print_json, results, tell, told
from geartrain.cli.questions import Asked, questions
from geartrain.errors import GeartrainError
from geartrain.predict.closed import predict as predict_closed
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.predict.simulated import simulate as predict_simulated
from geartrain.predict.table import NOTE, predictions_table
from geartrain.predict.words import Explanation, explain
from geartrain.record.text import print_whole
from geartrain.strategies import parse_list

FORMAT = 1
"""Of `--json`."""

ALTERNATIVES = "synchronous,dear"
"""What a strategy that stands alone is held against: methods with the same weights after every step."""


@dataclass(frozen=True)
class Answer:
    """What came of a question: a prediction and its explanation, or why there is none."""

    question: Question
    prediction: Prediction | None = None
    error: str = ""
    explanation: Explanation | None = None


def predict(asked: Asked, simulated: bool, as_json: bool) -> int:
    """Answer all questions and print them; the exit code."""
    answers = _answers(questions(asked), simulated)
    answers = [_explained(answer, answers) for answer in answers]
    if as_json:
        print_json(_json(answers))
    else:
        _print(answers)
    whole = all(answer.prediction and answer.prediction.fits for answer in answers)
    return 0 if whole else 1


def _answers(asked: Sequence[Question], simulated: bool) -> list[Answer]:
    if not simulated:
        return [_answer(question, simulated) for question in asked]
    answers = []
    with told(len(asked)) as progress:
        for question in asked:
            progress.start(str(question))
            answers.append(_answer(question, simulated))
            progress.done(str(question))
    return answers


def _answer(question: Question, simulated: bool) -> Answer:
    try:
        return Answer(question, predict_simulated(question) if simulated else predict_closed(question))
    except GeartrainError as error:
        return Answer(question, error=str(error))


def _explained(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """With its explanation, held against the other strategies of its cell, or against a few where there are none."""
    if answer.prediction is None:
        return answer
    question = answer.question
    others = [
        one.prediction
        for one in answers
        if one is not answer and one.prediction and _cell(one.question) == _cell(question)
    ]
    return replace(answer, explanation=explain(answer.prediction, others or _alternatives(question)))


def _cell(question: Question) -> tuple[str, int]:
    return question.cluster.name, question.ranks


def _alternatives(question: Question) -> list[Prediction]:
    if question.ranks == 1:
        return []
    rivals = [strategy for strategy in parse_list(ALTERNATIVES) if strategy.name != question.strategy.name]
    found = (_answer(replace(question, strategy=strategy), simulated=False) for strategy in rivals)
    return [answer.prediction for answer in found if answer.prediction]


def _json(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "predictions": [
            {**answer.prediction.as_json(), "explanation": asdict(answer.explanation)}
            for answer in answers
            if answer.prediction and answer.explanation
        ],
        "failed": [
            {
                "strategy": str(answer.question.strategy),
                "cluster": answer.question.cluster.name,
                "ranks": answer.question.ranks,
                "error": answer.error,
            }
            for answer in answers
            if answer.prediction is None
        ],
    }


def _print(answers: Sequence[Answer]) -> None:
    console = results()
    predictions = [answer.prediction for answer in answers if answer.prediction]
    if predictions:
        print_whole(console, predictions_table(predictions))
    for answer in answers:
        if answer.prediction is None:
            console.print(f"{answer.question}: {answer.error}", style="red", markup=False, soft_wrap=True)
        elif answer.explanation:
            console.print(f"{answer.question}: {answer.explanation.sentence}", markup=False, soft_wrap=True)
    notes = [note for one in predictions for note in one.notes]
    if predictions:
        notes.append(NOTE)
    for note in dict.fromkeys(notes):
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)
    tell(*(line for line in _model_reports(predictions)))


def _model_reports(predictions: Sequence[Prediction]) -> list[str]:
    lines = [line for one in predictions for line in one.question.model.report()]
    return list(dict.fromkeys(lines))
