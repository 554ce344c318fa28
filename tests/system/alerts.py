#!/usr/bin/env python3
"""Which alerts of a rules file fire, by what the exporter told before and after; for test_alerts.

usage: alerts.py scrape PORT FILE          one scrape of 127.0.0.1:PORT
       alerts.py fire RULES BEFORE AFTER   names of the alerts that fire, one a line
       alerts.py names RULES               all of them

A small part of PromQL, enough for the rules there are; what it does not know is an error, not a silence.  rate() and increase()
are of the two scrapes, as if they lay at both ends of the range.  "for:" is not waited for.
"""
import http.client
import operator
import re
import sys

TERM = re.compile(r"(?P<sum>sum\()?(?:(?P<over>rate|increase)\((?P<ranged>\w+)\[(?P<n>\d+)(?P<unit>[mh])\]\)|(?P<plain>kvpool_\w+))(?(sum)\))")
COMPARE = re.compile(r"(.*) (==|!=|>|<|>=|<=) (.+)")
OPERATORS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}


def read(path):
    series = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                series[name] = float(value)
    return series


def vector(text, before, after):
    """{labels: value} of a term, of a sum of terms."""
    if re.fullmatch(r"[0-9.]+", text):
        return {"": float(text)}
    if " + " in text:
        terms = [vector(term, before, after) for term in text.split(" + ")]
        return {"": sum(sum(term.values()) for term in terms)} if all(terms) else {}
    found = TERM.fullmatch(text)
    if not found:
        raise SystemExit("alerts.py does not know this term: " + text)
    name = found["ranged"] or found["plain"]
    values = {}
    for series, value in after.items():
        if series.split("{")[0] == name:
            if found["over"]:
                if series not in before:  # Prometheus sees no increase without a sample before
                    continue
                value = max(value - before[series], 0)
            if found["over"] == "rate":
                value /= int(found["n"]) * {"m": 60, "h": 3600}[found["unit"]]
            values[series] = value
    return {"": sum(values.values())} if found["sum"] and values else values


def fires(expr, before, after):
    if " or " in expr:
        return any(fires(part, before, after) for part in expr.split(" or "))
    if " and " in expr:
        return all(fires(part, before, after) for part in expr.split(" and "))
    found = COMPARE.fullmatch(expr)
    if not found:
        raise SystemExit("alerts.py does not know this comparison: " + expr)
    left, right = vector(found[1], before, after), vector(found[3], before, after)
    if right and list(right) != [""]:
        raise SystemExit("alerts.py compares with a number or a sum only: " + expr)
    return bool(right) and any(OPERATORS[found[2]](value, right[""]) for value in left.values())


def main():
    if sys.argv[1] == "scrape":
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=20)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode("ascii")
        if answer.status != 200:
            raise SystemExit("the exporter answers %d: %s" % (answer.status, text))
        with open(sys.argv[3], "w", encoding="ascii") as file:
            file.write(text)
        return
    with open(sys.argv[2], encoding="utf-8") as file:
        rules = re.findall(r"- alert: (\w+)\n +expr: (.*)\n", file.read())
    for name, expr in rules:
        if sys.argv[1] == "names" or fires(expr, read(sys.argv[3]), read(sys.argv[4])):
            print(name)


main()
