// Redraws the visible part of the timeline from all its samples after each zoom.
{
  const TYPES = {f: Float32Array, H: Uint16Array, B: Uint8Array};
  const plot = document.getElementById("plot-timeline");
  const plan = JSON.parse(document.getElementById("timeline-plan").textContent);
  let arrays = null;

  async function unpack() {
    const text = document.getElementById("timeline-samples").textContent.trim();
    const packed = new Blob([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))]);
    const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    return plan.arrays.map(([type, offset, length]) => new TYPES[type](buffer, offset, length));
  }

  // Indices of the samples from `from` to `to`, with one more sample on either side.
  function visible(times, from, to) {
    const first = times.findIndex(time => time >= from), end = times.findIndex(time => time > to);
    return [Math.max(0, (first < 0 ? times.length : first) - 1), end < 0 ? times.length : end + 1];
  }

  // Minimum and maximum of each stretch, in their order; a stretch may be a single sample.
  function line(kept, from, to) {
    const times = arrays[kept.x], levels = arrays[kept.y], x = [], y = [];
    const [first, end] = visible(times, from, to);
    const stride = end - first > plan.mostPoints ? Math.ceil(2 * (end - first) / plan.mostPoints) : 1;
    for (let begin = first; begin < end; begin += stride) {
      let least = begin, greatest = begin;
      for (let place = begin; place < Math.min(begin + stride, end); place++) {
        if (levels[place] === plan.none) continue;
        if (levels[least] === plan.none || levels[place] < levels[least]) least = place;
        if (levels[greatest] === plan.none || levels[place] > levels[greatest]) greatest = place;
      }
      for (const place of new Set([Math.min(least, greatest), Math.max(least, greatest)])) {
        x.push(times[place]);
        y.push(levels[place] === plan.none ? null : kept.low + kept.step * levels[place]);
      }
    }
    return {x, y};
  }

  // A core's maximum in each stretch.
  function cores(kept, from, to) {
    const times = arrays[kept.x], levels = arrays[kept.z];
    const [first, end] = visible(times, from, to);
    const stride = Math.ceil((end - first) / plan.mostTimes), edges = [];
    for (let begin = first; begin < end; begin += stride) edges.push(begin);
    const greatest = (core, begin) => {
      const until = Math.min(begin + stride, end), offset = core * times.length;
      const known = levels.subarray(offset + begin, offset + until).filter(level => level !== plan.noCore);
      return known.length ? Math.max(...known) : null;
    };
    const rows = Array.from({length: kept.num}, (_, core) => edges.map(begin => greatest(core, begin)));
    return {x: edges.map(place => times[place]), z: rows};
  }

  // Start and end of the visible events of a kind; if there are too many, the longest.
  function spans(kind, from, to, most) {
    const begins = arrays[plan.lanes[kind].begin], ends = arrays[plan.lanes[kind].end], found = [];
    begins.forEach((begin, place) => {
      if (begin <= to && ends[place] >= from) found.push([begin, ends[place]]);
    });
    if (found.length <= most) return found;
    return found.sort((one, other) => other[1] - other[0] - one[1] + one[0]).slice(0, most);
  }

  function lane(trace, from, to) {
    const found = spans(trace.name, from, to, plan.mostPoints), y = plan.lanes[trace.name].y;
    return {x: found.flatMap(([begin, end]) => [begin, end, null]), y: found.flatMap(() => [y, y, y])};
  }

  function title(from, to) {
    const [first, end] = plan.clock === null ? [0, 0] : visible(arrays[plan.clock], from, to), num = end - first;
    const seconds = (2 * num / plan.mostPoints * plan.seconds).toFixed(1);
    return num > plan.mostPoints ? plan.coarse.replace("{}", seconds) : plan.finest;
  }

  async function draw(from, to) {
    arrays ??= await unpack();
    for (const trace of plot.data) {
      if (trace.name in plan.lines) Object.assign(trace, line(plan.lines[trace.name], from, to));
      else if (trace.name in plan.lanes) Object.assign(trace, lane(trace, from, to));
      else if (plan.cores) Object.assign(trace, cores(plan.cores, from, to));
    }
    const waits = "fetch" in plan.lanes ? spans("fetch", from, to, plan.mostBands) : [];
    const bands = waits.map(([x0, x1]) => ({...plan.band, x0, x1}));
    const marks = (plot.layout.shapes ?? []).filter(shape => shape.type === "line");
    const text = plan.title.replace("{}", title(from, to));
    const layout = {...plot.layout, shapes: [...bands, ...marks], title: {...plot.layout.title, text}};
    await Plotly.react(plot, plot.data, layout);
  }

  plot.on("plotly_relayout", change => {
    const axis = Object.keys(change).map(key => /^(xaxis\d*)\./.exec(key)?.[1]).find(Boolean);
    if (axis) draw(...plot.layout[axis].range);
  });
}
