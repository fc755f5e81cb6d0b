//! The page, in a real browser: the cluster at a glance and the walk as a timeline.

use std::path::Path;
use std::process::Stdio;

use crate::browser::{Browser, line_with};
use crate::harness::Cluster;

/// Ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_page_shows_the_cluster_and_the_walk() {
    let cluster = Cluster::up(&[]);
    cluster.kubectl("run hello --image=cox.local/hello --replicas=3 --port=80 --expose");
    cluster.kubectl("rollout status deployment/hello --timeout=170s");
    let mut ui = Running(cluster.cox("ui").stdout(Stdio::piped()).spawn().unwrap());
    let url = line_with(&mut ui.0, "The cluster is at ");
    let url = url.split_whitespace().next().unwrap();
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let browser = Browser::start(&cluster.host);

    browser.open(url);
    browser.wait("document.getElementById('link').textContent === 'live'");
    browser.wait("document.querySelectorAll('.dot.good').length >= 3");
    browser.wait("document.body.innerText.includes('node-1') && document.body.innerText.includes('Scheduled')");
    browser.screenshot(&pictures.join("ui-cluster.png"));
    // By watch, not by asking again.
    cluster.kubectl("scale deployment/hello --replicas=4");
    browser.wait("document.querySelectorAll('.dot.good').length >= 4");

    // Figures beside nodes and pods, with lines of the last hour. A cluster of a minute has too few: these are made up.
    let figures = "(() => {
        const now = Date.now() / 1000;
        const of = (what, of, namespace, name) => ({ what, of, namespace, name, points: [[now - 60, 0.1], [now, 0.2]] });
        const told = { series: [of('cpu_cores', 'node', '', 'node-1'), of('requests_per_second', 'component', '', 'kube-apiserver')] };
        const real = window.fetch;
        window.fetch = (url, ...rest) => String(url).startsWith('/cox/history')
            ? Promise.resolve(new Response(JSON.stringify(told))) : real(url, ...rest);
        document.dispatchEvent(new Event('visibilitychange'));
        return true;
    })()";
    assert_eq!(browser.eval(figures), true);
    browser.wait("document.querySelectorAll('svg.spark polyline').length >= 2");
    browser.wait("document.body.innerText.includes('200m')");

    // The walk, reached by keyboard.
    browser.eval("document.querySelector('a[aria-label=\"Walk of hello\"]').focus()");
    browser.press("\u{e007}");
    browser.wait("document.querySelectorAll('.span').length > 50");
    browser.wait("['1', '2', '3', '5', '6', '7', '8', '11'].every(n => document.querySelector(`.lane.c${n}`))");
    browser.wait("document.querySelectorAll('.steps button').length > 5");
    let chosen = "document.querySelector('[aria-selected]').dataset.id";
    let first = browser.eval(chosen);
    browser.press("\u{e015}"); // down: to an effect
    browser.wait(&format!("{chosen} !== {first}"));
    assert_eq!(browser.eval("document.querySelectorAll('.arrows path.back').length > 0"), true);
    browser.press("\u{e013}"); // up: back to the cause
    browser.wait(&format!("{chosen} === {first}"));
    browser.eval("document.querySelector('.timeline').classList.contains('playing') || document.querySelector('.primary').click()");
    browser.wait("!document.querySelector('.timeline').classList.contains('playing')");
    browser.screenshot(&pictures.join("ui-walk.png"));

    // On a phone nothing is wider than the screen, and the dark dress fits too.
    browser.resize(400, 860);
    browser.press("t");
    for view in ["#/", "#/walk/deployments/default/hello"] {
        browser.eval(&format!("(location.hash = '{view}')"));
        browser.wait("document.querySelectorAll('.card').length > 2");
        browser.wait("document.documentElement.scrollWidth <= document.documentElement.clientWidth");
        let name = if view == "#/" { "ui-phone.png" } else { "ui-phone-walk.png" };
        browser.screenshot(&pictures.join(name));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
