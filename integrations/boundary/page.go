package boundary

import (
	"fmt"
	"strings"
)

// Page returns the table as a page of the reference, in Markdown. Fields for which the same is true share a row.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Settings of a container

<!-- Made from integrations/boundary by go test ./integrations/boundary -update. Edit the table there. -->

egressd holds a container to this table. These read it:

- ` + "`egressd docker run`, about the container that the engine has created and not yet started;" + `
- ` + "`egressd init compose` and `egressd init devcontainer`, about the containers that a project's files would make;" + `
- ` + "`egressd attach`, and `egressd serve` for each network that a container hands in;" + `
- ` + "`egressd doctor --container`, and `doctor --inside` for capabilities." + `

A refusal is [a record](record.md#refused-containers) in the log of the egressd that would have served the container.

A field that is **harmless** is never refused, one that is **judged** is refused by its value, one that is **refused** may
not be set. A field that is not here is refused by its name. The fields are those of the engine's API
(` + "`GET /containers/ID/json`" + `).

| field | written as | | |
|---|---|---|---|
`)
	for _, part := range tables() {
		for _, r := range part {
			fields := quotedFields(r.under, r.fields)
			if r.under != "" && len(strings.Fields(r.fields)) > 2 {
				fields = "below `" + strings.TrimSuffix(r.under, ".") + "`: " + quotedFields("", r.fields)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", fields, quotedFields("", r.names), r.ruling, r.why)
		}
	}
	b.WriteString("\n## Capabilities\n\n| capability | |\n|---|---|\n")
	for _, c := range Capabilities() {
		does := "harmless"
		switch {
		case JudgeCapability(c.Name, true) == "" && c.Does != "":
			does = "refused in a network with others: " + c.Does
		case c.Does != "":
			does = "refused: " + c.Does
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name, does)
	}
	b.WriteString(`
## Mounts

A mount of a folder or file of this machine is refused if it

- is or holds a socket of somebody who acts for clients, under any name, or a device, or lies in ` + "`/proc`, `/sys` or `/dev`" + `;
- is, holds, or lies in what is egressd's: policy, state, keys, log, sockets;
- is, holds, or lies in a place of keys, passwords and sessions, also if it is only read (the list is below);
- can be written, and is not a folder for data.

Folders for data are the workspace, folders of a home whose names do not begin with a dot (but not ` + "`~/bin`" + `), ` + quotedFields("", strings.Join(dataFolders, " ")) + `, and
folders of the root that no system has, such as ` + "`/srv`" + `. These are the system's: ` + quotedFields("/", systemFolders) + `. Where egressd knows the workspace, other
repositories of git cannot be written.

Keys, passwords and sessions lie in ` + quotedFields("~/", homeSecrets) + `, and in
` + quotedFields("", systemSecrets) + `. The homes are yours, and that of another user whose folder is mounted.

A named volume is refused if another driver than ` + "`local`" + ` makes it, if its options name another machine, a device, or a folder that could not be
mounted, if it is made elsewhere, or if it is egressd's own.

## Labels

No container may have a label ` + "`egressd.*` or `com.docker.compose.*`" + ` of its own.

## Settings of the kernel

` + "`sysctls`" + ` may be ` + quotedFields("", sysctlNames) + `.
`)
	return b.String()
}

// quotedFields are words of a list as code.
func quotedFields(under, list string) string {
	var all []string
	for word := range strings.FieldsSeq(list) {
		all = append(all, "`"+under+word+"`")
	}
	return strings.Join(all, ", ")
}
