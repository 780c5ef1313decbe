//! Curves as SVG.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::contenders::Contender;
use crate::table::Series;
use crate::waits::Waits;

const SIZE: (u32, u32) = (1_000, 480);
/// The margin right of the curves, which keeps the names off the curves.
const LEGEND: u32 = 230;
const WIDTH: u32 = 2;

/// The data of one contender's curve.
pub(crate) struct Line<'a, T: ?Sized> {
    contender: Contender,
    data: &'a T,
}

impl<'a, T: ?Sized> Line<'a, T> {
    pub(crate) fn new(contender: Contender, data: &'a T) -> Self {
        Self { contender, data }
    }

    /// Returns a color that readers with red-green color blindness can distinguish (Okabe and Ito).
    fn style(&self) -> ShapeStyle {
        let color = match self.contender {
            Contender::Ours => RGBColor(213, 94, 0),
            Contender::OursAwaited => RGBColor(230, 159, 0),
            Contender::OursBackend => RGBColor(240, 228, 66),
            Contender::Bare => RGBColor(0, 0, 0),
            Contender::BareToken => RGBColor(90, 90, 90),
            Contender::Checkout => RGBColor(150, 150, 150),
            Contender::Rslock => RGBColor(0, 114, 178),
            Contender::DistributedLock => RGBColor(0, 158, 115),
            Contender::Redisson | Contender::RedissonFair => RGBColor(204, 121, 167),
            Contender::Mutex => RGBColor(86, 180, 233),
        };
        color.stroke_width(WIDTH)
    }

    fn label(&self) -> String {
        self.contender.name().replace('`', "")
    }
}

/// Draws the wait at each quantile. Rarer waits are further to the right.
pub(crate) fn waits(path: &Path, title: &str, lines: &[Line<'_, Waits>]) {
    draw_waits(path, title, lines).expect("the plot can be written");
}

/// Pairs per second over requests in flight: medians, with bars for the ranges.
pub(crate) fn throughput(path: &Path, title: &str, levels: &[usize], lines: &[Line<'_, [Series]>]) {
    draw_throughput(path, title, levels, lines).expect("the plot can be written");
}

/// The last quantile, which one wait in ten to this power exceeds.
const NINES: f64 = 4.0;

fn share(nines: f64) -> f64 {
    1.0 - 10f64.powf(-nines)
}

fn draw_waits(path: &Path, title: &str, lines: &[Line<'_, Waits>]) -> Result<(), Box<dyn Error>> {
    let all = || lines.iter().map(|line| line.data);
    let shortest = all().map(|waits| waits.at(0.0)).fold(1.0, f64::min);
    let longest = all()
        .map(|waits| waits.at(share(NINES)))
        .fold(0.0, f64::max);
    let seconds = (shortest.max(1e-7)..longest * 1.2).log_scale();
    let area = area(path, lines)?;
    let mut chart = builder(&area, title).build_cartesian_2d(0.0..NINES, seconds)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(5)
        .x_label_formatter(&|nines| format!("{} %", (share(*nines) * 1e6).round() / 1e4))
        .x_desc("so many of the waits were no longer than")
        .y_label_formatter(&|seconds| time(*seconds))
        .draw()?;
    for line in lines {
        let points = (0..=400).map(|step| f64::from(step) / 400.0 * NINES);
        let curve = points.map(|nines| (nines, line.data.at(share(nines))));
        chart.draw_series(LineSeries::new(curve, line.style()))?;
    }
    Ok(area.present()?)
}

fn draw_throughput(
    path: &Path,
    title: &str,
    levels: &[usize],
    lines: &[Line<'_, [Series]>],
) -> Result<(), Box<dyn Error>> {
    let measured = lines.iter().flat_map(|line| line.data);
    let most = measured.map(|pairs| pairs.range().1).fold(0.0, f64::max);
    let last = (levels.len() - 1) as f64;
    let area = area(path, lines)?;
    let mut chart = builder(&area, title).build_cartesian_2d(-0.1..last + 0.1, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(levels.len())
        .x_label_formatter(&|at| levels[at.round() as usize].to_string())
        .x_desc("in flight")
        .y_label_formatter(&|pairs| format!("{pairs:.0}"))
        .y_desc("pairs per second")
        .draw()?;
    for (nth, line) in lines.iter().enumerate() {
        let style = line.style();
        // The bars are side by side, because one bar could hide another.
        let shift = (nth as f64 - lines.len() as f64 / 2.0) * 0.015;
        let pairs = || (0..).map(|at| f64::from(at) + shift).zip(line.data);
        let medians = pairs().map(|(at, pairs)| (at, pairs.median()));
        chart.draw_series(LineSeries::new(medians, style))?;
        chart.draw_series(pairs().map(|(at, pairs)| {
            let (min, max) = pairs.range();
            ErrorBar::new_vertical(at, min, pairs.median(), max, style.filled(), 6)
        }))?;
    }
    Ok(area.present()?)
}

/// Returns the area for the curves, beside which their names are drawn.
fn area<'a, T: ?Sized>(
    path: &'a Path,
    lines: &[Line<'_, T>],
) -> Result<DrawingArea<SVGBackend<'a>, Shift>, Box<dyn Error>> {
    let whole = SVGBackend::new(path, SIZE).into_drawing_area();
    whole.fill(&WHITE)?;
    let (curves, names) = whole.split_horizontally(SIZE.0 - LEGEND);
    for (y, line) in (60..).step_by(24).zip(lines) {
        names.draw(&PathElement::new([(0, y), (18, y)], line.style()))?;
        names.draw(&Text::new(line.label(), (26, y - 7), ("sans-serif", 16)))?;
    }
    Ok(curves)
}

fn builder<'a, 'b>(
    area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    title: &str,
) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(72);
    builder
}

/// Formats a duration in the unit that gives a small number.
fn time(seconds: f64) -> String {
    match seconds {
        ..1e-6 => format!("{:.0} ns", seconds * 1e9),
        ..1e-3 => format!("{:.0} µs", seconds * 1e6),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.0} s"),
    }
}
