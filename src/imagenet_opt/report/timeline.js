// Draws the visible part of the timeline from all its samples, first the whole timeline and then after each zoom.
{
  const TYPES = {f: Float32Array, B: Uint8Array};
  const plot = document.getElementById("plot-timeline");
  const plan = JSON.parse(document.getElementById("timeline-plan").textContent);
  const unpacked = Promise.all(plan.arrays.map(unpack));
  let arrays;

  async function unpack([type, text]) {
    const packed = new Blob([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))]);
    const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
    return new TYPES[type](await new Response(stream).arrayBuffer());
  }

  // Indices of the samples from `from` to `to`, with one more sample on either side.
  function visible(times, from, to) {
    const first = times.findIndex(time => time >= from), end = times.findIndex(time => time > to);
    return [Math.max(0, (first < 0 ? times.length : first) - 1), end < 0 ? times.length : end + 1];
  }

  // Minimum and maximum of each stretch, in their order; a stretch may be a single sample.
  function line(kept, from, to) {
    const times = arrays[kept.x], values = arrays[kept.y], x = [], y = [];
    const [first, end] = visible(times, from, to);
    const stride = end - first > plan.mostPoints ? Math.ceil(2 * (end - first) / plan.mostPoints) : 1;
    for (let begin = first; begin < end; begin += stride) {
      let least = begin, greatest = begin;
      for (let place = begin; place < Math.min(begin + stride, end); place++) {
        if (Number.isNaN(values[place])) continue;
        if (!(values[place] >= values[least])) least = place;
        if (!(values[place] <= values[greatest])) greatest = place;
      }
      for (const place of new Set([Math.min(least, greatest), Math.max(least, greatest)])) {
        x.push(times[place]);
        y.push(values[place]);
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
  function spans(kept, from, to, most) {
    const ends = arrays[kept.x], shown = [];
    for (let place = 0; place < ends.length; place += 3)
      if (ends[place] <= to && ends[place + 1] >= from) shown.push([ends[place], ends[place + 1]]);
    if (shown.length <= most) return shown;
    return shown.sort((span, other) => other[1] - other[0] - span[1] + span[0]).slice(0, most);
  }

  function lane(kept, from, to) {
    const shown = spans(kept, from, to, plan.mostPoints);
    return {x: shown.flatMap(([begin, end]) => [begin, end, null]), y: shown.flatMap(() => Array(3).fill(kept.y))};
  }

  function title(from, to) {
    const [first, end] = visible(arrays[plan.clock], from, to), num = end - first;
    const seconds = (2 * num / plan.mostPoints * plan.seconds).toFixed(1);
    return num > plan.mostPoints ? plan.coarse.replace("{}", seconds) : plan.finest;
  }

  async function draw(from, to) {
    arrays = await unpacked;
    const points = {line, cores, lane};
    plan.traces.forEach((kept, place) => Object.assign(plot.data[place], points[kept.kind](kept, from, to)));
    const fetch = plan.traces[plot.data.findIndex(trace => trace.name === "fetch")];
    const waits = fetch ? spans(fetch, from, to, plan.mostBands) : [];
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
  draw(...plot.layout.xaxis.range);
}
