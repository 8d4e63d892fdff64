#!/bin/sh
# tests/browser.sh PAGE FOLDER: opens a report in headless Chromium and checks that every section and chart is in the DOM, that
# the page does not scroll sideways on a phone, that no table hides rows, and that pictures of it (phone and desktop, light and
# dark) are not blank.
# The pictures stay in FOLDER. Exit status 77: no Chromium here.
set -u
page=$(realpath "$1")
folder=$2
browser=
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && browser=$name && break
done
[ -n "$browser" ] || exit 77
mkdir -p "$folder" || exit 1
folder=$(realpath "$folder")

open_page() {
    timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --allow-file-access-from-files --user-data-dir="$folder/profile" "$@" 2>"$folder/browser.log"
}
fail() {
    echo "browser: $1"
    exit 1
}

# an iframe 390 pixels wide measures the page as a phone shows it
cp "$page" "$folder/page.html"
cat >"$folder/frame.html" <<'HTML'
<body><iframe id="f" src="page.html" width="390" height="800"></iframe><pre id="o"></pre><script>
f.onload = () => {
    const d = f.contentDocument, e = d.documentElement, count = s => d.querySelectorAll(s).length;
    const charts = [...d.querySelectorAll("svg.chart")];
    o.textContent = "sideways " + (e.scrollWidth - e.clientWidth) + ", sections " + count("section") +
        ", charts " + charts.length + ", flat " + charts.filter(c => c.getBoundingClientRect().height < 40).length +
        ", unnamed " + charts.filter(c => !c.getAttribute("aria-label")).length +
        ", untitled " + [...d.querySelectorAll("table")].filter(t => !t.caption).length +
        ", cropped " + [...d.querySelectorAll(".scroll")].filter(s => s.scrollHeight > s.clientHeight + 1).length +
        ", scripts " + count("script");
};
</script></body>
HTML
facts=$(open_page --dump-dom "file://$folder/frame.html" | sed -n 's|.*<pre id="o">\([^<]*\)</pre>.*|\1|p')
[ "$facts" = "sideways 0, sections 16, charts 42, flat 0, unnamed 0, untitled 0, cropped 0, scripts 0" ] || fail "the DOM has: $facts"

# a blank picture has only a few kilobytes
for width in 390 1280; do
    for scheme in 1 0; do # light, dark
        shot="$folder/$width-$([ $scheme = 1 ] && echo light || echo dark).png"
        open_page --blink-settings=preferredColorScheme=$scheme --window-size=$width,1600 --screenshot="$shot" \
            "file://$folder/page.html" >/dev/null
        [ "$(wc -c <"$shot" 2>/dev/null || echo 0)" -gt 30000 ] || fail "$shot shows nothing"
    done
done
cmp -s "$folder/1280-light.png" "$folder/1280-dark.png" && fail "dark looks like light"
exit 0
