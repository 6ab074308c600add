// Parts of the page that are wider than their place.
const wide = [document.documentElement, document.querySelector("section:not([hidden])"), document.querySelector("header")];
return wide.filter((e) => e && e.scrollWidth > e.clientWidth + 1).map((e) => [e.tagName, e.scrollWidth, e.clientWidth]);
