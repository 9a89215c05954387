# Insert hostd's four lines into a pf.conf, each into its section; see setup-host. Existing lines stay where they are and are
# not added again.
BEGIN {
    table = ENVIRON["table_line"]; nat = ENVIRON["nat_line"]
    anchor = ENVIRON["anchor_line"]; load = ENVIRON["load_line"]
}
{ line[NR] = $0; there[$0] = 1 }
END {
    translation = "^[ \t]*(no[ \t]+(nat|rdr|binat)|nat|rdr|binat|nat-anchor|rdr-anchor|binat-anchor)([ \t]|$)"
    filter = "^[ \t]*(pass|block|match|anchor|antispoof|load[ \t]+anchor)([ \t]|$)"
    for (i = 1; i <= NR; i++) {
        if (!continued) {
            is_filter = line[i] ~ filter
            if ((is_filter || line[i] ~ translation) && !before_nat++) { put(table); put(nat) }
            if (is_filter && !before_filter++) { put(anchor); put(load) }
        }
        print line[i]
        continued = line[i] ~ /\\$/
    }
    if (!before_nat) { put(table); put(nat) }
    if (!before_filter) { put(anchor); put(load) }
}
function put(text) { if (!(text in there)) print text }
