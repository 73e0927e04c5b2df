// Renders the formulas again on every page, since navigation replaces the body without a reload.
document$.subscribe(function (page) {
  renderMathInElement(page.body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
  });
});
