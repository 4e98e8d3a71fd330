# SPDX-License-Identifier: Apache-2.0
"""check_dashboards.py finds what is missing, and nothing else."""

import json
import pathlib
import unittest

import check_dashboards

SCRAPE = """# HELP tokens_total Tokens.
# TYPE tokens_total counter
tokens_total{model_name="m"} 12
ended_total{model_name="m",reason="stop"} 1
ended_total{model_name="m",reason="a\\"b}"} 1
wait_seconds_bucket{model_name="m",le="+Inf"} 3
other:name{model_name="m"} 1e-05
"""

SOUND = [
    ("rate(tokens_total[1m])", ""),
    ("sum by (reason) (rate(ended_total{model_name=~\"$model\"}[$__rate_interval]))", "{{reason}}"),
    ("histogram_quantile(0.99, sum by (le) (rate(wait_seconds_bucket[5m])))", "p99"),
    ("other:name / on (model_name) group_left () tokens_total", "{{model_name}}"),
    ('ended_total{reason="stop"} or ended_total{reason="a\\"b}"}', ""),
    ('ended_total{reason!="length"}', ""),
    ("1 - other:name", ""),
]
FAULTY = [
    ("rate(token_total[1m])", "", "no metric token_total"),
    ("other_name", "", "no metric other_name"),
    ("tokens_total{dp_rank=\"0\"}", "", "tokens_total has no label dp_rank"),
    ("ended_total{reason=\"length\"}", "", 'ended_total has no reason="length"'),
    ("sum by (rank) (tokens_total)", "", "no metric of sum by (rank) (tokens_total) has a label rank"),
    ("tokens_total", "{{ reason }}", "no metric of tokens_total has a label reason"),
]


def dashboard_of(expression, legend=""):
    return {"panels": [{"panels": [{"title": "p", "targets": [{"expr": expression, "legendFormat": legend}]}]}]}


class CheckDashboardsTest(unittest.TestCase):
    samples = check_dashboards.scrape_of(SCRAPE)

    def test_sound(self):
        for expression, legend in SOUND:
            with self.subTest(expression):
                found = list(check_dashboards.faults_of(dashboard_of(expression, legend), self.samples))
                self.assertEqual(found, [])

    def test_faulty(self):
        for expression, legend, fault in FAULTY:
            with self.subTest(expression):
                found = list(check_dashboards.faults_of(dashboard_of(expression, legend), self.samples))
                self.assertEqual(found, [f"panel 'p': {fault}"])

    def test_variables(self):
        dashboard = dashboard_of("tokens_total")
        dashboard["templating"] = {"list": [{"name": "m", "query": "label_values(tokens_total, model_name)"}]}
        self.assertEqual(list(check_dashboards.faults_of(dashboard, self.samples)), [])
        dashboard["templating"]["list"][0]["query"] = "label_values(tokens_total, job)"
        self.assertEqual(len(list(check_dashboards.faults_of(dashboard, self.samples))), 1)

    def test_an_empty_dashboard_is_at_fault(self):
        self.assertEqual(len(list(check_dashboards.faults_of({"panels": []}, self.samples))), 1)

    def test_text_that_is_no_scrape_is_refused(self):
        with self.assertRaises(ValueError):
            check_dashboards.scrape_of('{"error": "not found"}')

    # Without a server at hand: the dashboards ask for names that docs/metrics.md, made of the code, has.
    def test_committed_dashboards_ask_for_documented_metrics(self):
        root = pathlib.Path(__file__).resolve().parent.parent
        page = (root / "docs" / "metrics.md").read_text()
        paths = sorted(root.glob("deploy/grafana/*.json"))
        self.assertGreaterEqual(len(paths), 2)
        for path in paths:
            for panel in check_dashboards.panels_of(json.loads(path.read_text())["panels"]):
                for target in panel.get("targets", []):
                    for metric, _ in check_dashboards.selectors_of(target["expr"]):
                        base = metric.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                        self.assertIn(f"`{base}`", page, f"{path.name}: {panel['title']}")


if __name__ == "__main__":
    unittest.main()
