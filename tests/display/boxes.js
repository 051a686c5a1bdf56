// Sends what is wrong with the boxes of this page's texts to the page that embeds it.
addEventListener("load", () => setTimeout(() => {
  const wrong = [], texts = [], width = document.documentElement.clientWidth;
  const add = (text, box) => { if (text.trim() && box.width && box.height) texts.push({text: text.trim().slice(0, 60), box}); };
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  const nodes = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = nodes.currentNode, parent = node.parentElement, range = document.createRange();
    if (parent.closest("svg, script, style") || !parent.checkVisibility()) continue;
    range.selectNodeContents(node);
    const scrolls = parent.closest(".table, pre");
    for (const box of range.getClientRects()) {
      add(node.data, box);
      if (box.left < -1 || (box.right > width + 1 && !(scrolls && getComputedStyle(scrolls).overflowX === "auto")))
        wrong.push(`cut: ${node.data.trim().slice(0, 60)}`);
    }
  }
  const drawn = [...document.querySelectorAll(".js-plotly-plot .main-svg text")].filter(text => !text.closest(".hoverlayer"));
  for (const text of drawn) {
    const box = text.getBoundingClientRect(), frame = text.closest(".main-svg").getBoundingClientRect();
    add(text.textContent, box);
    if (box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1))
      wrong.push(`cut in a figure: ${text.textContent}`);
  }
  texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
    const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (across > 2 && down > 3) wrong.push(`overlap: ${a.text} / ${b.text}`);
  }));
  const bars = [...document.querySelectorAll(".barlayer")].map(bars => bars.getBoundingClientRect().width);
  const top = [...document.querySelectorAll("h1, figure, .tiles, td")].map(part => part.tagName).slice(0, 2);
  parent.postMessage({wrong, num: texts.length, narrowest: Math.min(...bars), drawn: drawn.length, top}, "*");
}, 1500));
