//! Curves as SVG, with their names at their ends. The colors follow the color scheme of the reader.

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contenders::Contender;
use crate::table::{Series, thousands};
use crate::waits::Waits;

const SIZE: (u32, u32) = (1_000, 500);
const TEXT: (&str, u32) = ("sans-serif", 16);
const WIDTH: u32 = 2;
/// The margin right of the curves, which has their names.
const NAMES: u32 = 280;
/// The least distance between two names.
const LINE_HEIGHT: i32 = 19;
const GRID: RGBColor = RGBColor(221, 221, 221);

/// In a dark color scheme, the background, the text and the grid have other colors.
const STYLE: &str = r##"<style>
@media (prefers-color-scheme: dark) {
  [fill="#FFFFFF"] { fill: #0D1117 }
  [fill="#000000"] { fill: #E6EDF3 }
  [stroke="#000000"] { stroke: #E6EDF3 }
  [stroke="#DDDDDD"] { stroke: #3D444D }
}
</style>
"##;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A curve with its name.
pub(crate) struct Line<'a, T: ?Sized> {
    name: String,
    color: RGBColor,
    data: &'a T,
}

impl<'a, T: ?Sized> Line<'a, T> {
    /// Returns the curve of a contender.
    ///
    /// Its color is visible on white and on black, and readers with red-green color blindness can distinguish it (most are
    /// from Okabe and Ito).
    pub(crate) fn new(contender: Contender, data: &'a T) -> Self {
        let color = match contender {
            Contender::Ours => RGBColor(213, 94, 0),
            Contender::OursAwaited => RGBColor(230, 159, 0),
            Contender::OursBackend => RGBColor(150, 100, 60),
            Contender::Bare => RGBColor(0, 0, 0),
            Contender::BareBehind => RGBColor(60, 60, 110),
            Contender::BareToken => RGBColor(110, 118, 129),
            Contender::Checkout => RGBColor(150, 160, 170),
            Contender::Rslock => RGBColor(0, 114, 178),
            Contender::DistributedLock => RGBColor(0, 158, 115),
            Contender::Redisson | Contender::RedissonFair => RGBColor(204, 121, 167),
            Contender::Rueidislock => RGBColor(150, 140, 0),
            Contender::Redsync => RGBColor(190, 180, 60),
            Contender::Mutex => RGBColor(86, 180, 233),
            _ => unreachable!("no plot shows it"),
        };
        Self::named(contender.name().replace('`', ""), color, data)
    }

    pub(crate) fn named(name: String, color: RGBColor, data: &'a T) -> Self {
        Self { name, color, data }
    }

    fn style(&self) -> ShapeStyle {
        self.color.stroke_width(WIDTH)
    }

    fn name(&self) -> Name {
        Name {
            text: self.name.clone(),
            style: self.style(),
        }
    }
}

struct Name {
    text: String,
    style: ShapeStyle,
}

/// Draws the wait at each quantile. Rarer waits are further to the right.
pub(crate) fn waits(path: &Path, title: &str, lines: &[Line<'_, Waits>]) {
    draw(path, |area| draw_waits(area, title, lines)).expect("the plot can be written");
}

/// Pairs per second over pairs in flight: medians, with bars for the ranges.
pub(crate) fn throughput(path: &Path, title: &str, levels: &[usize], lines: &[Line<'_, [Series]>]) {
    draw(path, |area| draw_throughput(area, title, levels, lines))
        .expect("the plot can be written");
}

/// Figures over levels, both in logarithms: medians. A figure that is proportional to its level is a straight line.
pub(crate) fn growth(
    path: &Path,
    title: &str,
    axes: [&str; 2],
    levels: &[usize],
    lines: &[Line<'_, [Series]>],
) {
    draw(path, |area| draw_growth(area, title, axes, levels, lines))
        .expect("the plot can be written");
}

fn draw(
    path: &Path,
    content: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        content(&area)?;
        area.present()?;
    }
    let content = svg.find("<rect").ok_or("no background")?;
    svg.insert_str(content, STYLE);
    Ok(fs::write(path, svg)?)
}

/// The last quantile, which one wait in ten to this power exceeds.
const NINES: f64 = 4.0;

fn share(nines: f64) -> f64 {
    1.0 - 10f64.powf(-nines)
}

fn draw_waits(
    area: &Area<'_>,
    title: &str,
    lines: &[Line<'_, Waits>],
) -> Result<(), Box<dyn Error>> {
    let all = || lines.iter().map(|line| line.data);
    let shortest = all().map(|waits| waits.at(0.0)).fold(1.0, f64::min);
    let longest = all()
        .map(|waits| waits.at(share(NINES)))
        .fold(0.0, f64::max);
    let seconds = (shortest.max(1e-7)..longest * 1.2).log_scale();
    let mut chart = builder(area, title).build_cartesian_2d(0.0..NINES, seconds)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(TEXT)
        .x_labels(5)
        .x_label_formatter(&|nines| format!("{} %", (share(*nines) * 1e6).round() / 1e4))
        .x_desc("share of the acquires that waited at most as long")
        .y_label_formatter(&|seconds| time(*seconds))
        .draw()?;
    let mut ends = Vec::new();
    for line in lines {
        let points = (0..=400).map(|step| f64::from(step) / 400.0 * NINES);
        let curve = points.map(|nines| (nines, line.data.at(share(nines))));
        chart.draw_series(LineSeries::new(curve, line.style()))?;
        ends.push(chart.backend_coord(&(NINES, line.data.at(share(NINES)))));
    }
    draw_names(area, lines.iter().map(Line::name).zip(ends).collect())
}

fn draw_throughput(
    area: &Area<'_>,
    title: &str,
    levels: &[usize],
    lines: &[Line<'_, [Series]>],
) -> Result<(), Box<dyn Error>> {
    let measured = lines.iter().flat_map(|line| line.data);
    let most = measured.map(|pairs| pairs.range().1).fold(0.0, f64::max);
    let last = (levels.len() - 1) as f64;
    let mut chart = builder(area, title).build_cartesian_2d(-0.1..last + 0.1, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(TEXT)
        .x_labels(levels.len())
        .x_label_formatter(&|at| levels[at.round() as usize].to_string())
        .x_desc("locks in flight")
        .y_label_formatter(&|pairs| thousands(*pairs, 0))
        .y_desc("acquire and release, per second")
        .draw()?;
    let mut ends = Vec::new();
    for (nth, line) in lines.iter().enumerate() {
        let style = line.style();
        // The bars are side by side, because one bar could hide another.
        let shift = (nth as f64 - lines.len() as f64 / 2.0) * 0.015;
        let pairs = || (0..).map(|at| f64::from(at) + shift).zip(line.data);
        let medians = pairs().map(|(at, pairs)| (at, pairs.median()));
        ends.extend(medians.clone().last().map(|end| chart.backend_coord(&end)));
        chart.draw_series(LineSeries::new(medians, style))?;
        chart.draw_series(pairs().map(|(at, pairs)| {
            let (min, max) = pairs.range();
            ErrorBar::new_vertical(at, min, pairs.median(), max, style.filled(), 6)
        }))?;
    }
    draw_names(area, lines.iter().map(Line::name).zip(ends).collect())
}

fn draw_growth(
    area: &Area<'_>,
    title: &str,
    [x, y]: [&str; 2],
    levels: &[usize],
    lines: &[Line<'_, [Series]>],
) -> Result<(), Box<dyn Error>> {
    let all = || (lines.iter().flat_map(|line| line.data)).map(Series::median);
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(0.0, f64::max);
    let x_range = (levels[0] as f64..levels[levels.len() - 1] as f64).log_scale();
    let y_range = (least / 2.0..most * 2.0).log_scale();
    let mut chart = builder(area, title).build_cartesian_2d(x_range, y_range)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(TEXT)
        .x_label_formatter(&|at| thousands(*at, 0))
        .x_desc(x)
        .y_label_formatter(&|figure| thousands(*figure, 0))
        .y_desc(y)
        .draw()?;
    let mut ends = Vec::new();
    for line in lines {
        let at = || levels.iter().map(|level| *level as f64);
        let points = || at().zip(line.data.iter().map(Series::median));
        ends.extend(points().next_back().map(|end| chart.backend_coord(&end)));
        chart.draw_series(LineSeries::new(points(), line.style()))?;
        let dots = points().map(|at| Circle::new(at, 4, line.color.filled()));
        chart.draw_series(dots)?;
    }
    draw_names(area, lines.iter().map(Line::name).zip(ends).collect())
}

/// Draws each name beside the end of its curve. Where several curves end at one height, the names are one
/// below the other, and lines lead to them.
fn draw_names(area: &Area<'_>, mut names: Vec<(Name, (i32, i32))>) -> Result<(), Box<dyn Error>> {
    names.sort_by_key(|&(_, (_, y))| y);
    let mut heights: Vec<_> = names.iter().map(|&(_, (_, y))| y).collect();
    for at in 1..heights.len() {
        heights[at] = heights[at].max(heights[at - 1] + LINE_HEIGHT);
    }
    let mut limit = SIZE.1 as i32 - 2 * LINE_HEIGHT;
    for height in heights.iter_mut().rev() {
        *height = limit.min(*height);
        limit = *height - LINE_HEIGHT;
    }
    let left = (SIZE.0 - NAMES) as i32;
    for ((name, end), y) in names.into_iter().zip(heights) {
        let lead = [end, (left + 4, end.1), (left + 20, y), (left + 26, y)];
        area.draw(&PathElement::new(lead, name.style.stroke_width(1)))?;
        let style = TextStyle::from(TEXT.into_font()).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name.text, (left + 32, y), style))?;
    }
    Ok(())
}

fn builder<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .margin_right(NAMES)
        .x_label_area_size(52)
        .y_label_area_size(92);
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
