// Package systemd makes units for egressd serve: a hardened service, and the sockets of the policy.
package systemd

import (
	"fmt"
	"path"
	"strings"

	"github.com/egressd/egressd/integrations"
)

// Units are what egressd's units of systemd depend on.
type Units struct {
	Dir     string // where they go
	Program string // path of egressd
	Config  string // path of the policy file

	// Addresses with a port, and paths, for ListenStream= and ListenDatagram=.
	Proxy  []string // for HTTP, CONNECT and SOCKS5; sockets of egressd's group
	Users  []string // paths of sockets that everybody may connect to, and is told apart at
	Names  []string // over UDP and TCP
	NAT    []string // for connections that NAT brings
	TProxy []string // for connections that tproxy brings

	Admin []string // for the operator: root alone may connect
}

// A socketUnit is the sockets that are made with the same options. systemd has
// options for a unit only.
type socketUnit struct {
	name, what string
	options    []string
	streams    []string
	datagrams  []string
}

// Files returns a service and the sockets that it is activated by, so that systemd
// holds them while egressd is started again, and those below port 1024 or for tproxy need no
// capability. Needs systemd 247 or later.
func Files(u Units) integrations.Set {
	plan := integrations.Set{Notes: []string{
		u.Config + " has to be readable by the service, which is no user that you know: chown root: and chmod 644, and 644 for what it names",
		"listeners are in the policy and in the units: where one changes, egressd init systemd --yes, systemctl daemon-reload, and start the sockets and the service again",
	}}
	var sockets []string
	for _, s := range u.sockets() {
		plan.Files = append(plan.Files, integrations.Made{Path: path.Join(u.Dir, s.name), Text: s.text(), Mode: 0o644})
		sockets = append(sockets, s.name)
	}
	plan.Files = append(plan.Files, integrations.Made{Path: path.Join(u.Dir, "egressd.service"), Text: u.service(sockets), Mode: 0o644})
	plan.Notes = append(plan.Notes, "systemctl daemon-reload && systemctl enable --now "+strings.Join(append(sockets, "egressd.service"), " "))
	return plan
}

func (u Units) sockets() (all []socketUnit) {
	const one = "BindIPv6Only=ipv6-only"
	for _, s := range []socketUnit{
		{"egressd.socket", "Proxy of egressd", []string{"SocketMode=0660"}, u.Proxy, nil},
		{"egressd-users.socket", "Proxy of egressd for users, whom the kernel names", []string{"SocketMode=0666"}, u.Users, nil},
		{"egressd-inner.socket", "Names and captured connections of egressd", []string{one}, append(append([]string(nil), u.Names...), u.NAT...), u.Names},
		{"egressd-tproxy.socket", "Connections that tproxy brings to egressd", []string{one, "Transparent=yes"}, u.TProxy, nil},
		{"egressd-admin.socket", "Operator's listener of egressd", []string{"SocketMode=0600"}, u.Admin, nil},
	} {
		if len(s.streams) > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (s socketUnit) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[Unit]\nDescription=%s\nDocumentation=man:egressd-serve(1)\n\n[Socket]\n", s.what)
	for _, at := range s.streams {
		fmt.Fprintf(&b, "ListenStream=%s\n", at)
	}
	for _, at := range s.datagrams {
		fmt.Fprintf(&b, "ListenDatagram=%s\n", at)
	}
	for _, o := range s.options {
		fmt.Fprintln(&b, o)
	}
	b.WriteString("Backlog=4096\nService=egressd.service\n\n[Install]\nWantedBy=sockets.target\n")
	return b.String()
}

func (u Units) service(sockets []string) string {
	names := strings.Join(sockets, " ")
	return fmt.Sprintf(service, names, names, names, u.Program, u.Config)
}

// service has no PrivateUsers=, which would hide who connects to a socket, no
// ProtectProc=, which would hide the program, and no RuntimeDirectory=, with which sockets
// would go when the service stops.
const service = `[Unit]
Description=Egress firewall for sandboxes
Documentation=man:egressd-serve(1)
Wants=network-online.target
Requires=%s
After=network-online.target %s

[Service]
Type=notify
NotifyAccess=main
Sockets=%s
ExecStart=%s serve --config %s
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
WatchdogSec=120
TimeoutStartSec=120
TimeoutStopSec=30

DynamicUser=yes
StateDirectory=egressd
StateDirectoryMode=0700
Environment=XDG_STATE_HOME=/var/lib
UMask=0077
LimitNOFILE=65536
LimitCORE=0
TimerSlackNSec=500000

CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallFilter=capset seccomp
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
MemoryDenyWriteExecute=yes
LockPersonality=yes
KeyringMode=private
RemoveIPC=yes

ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes

[Install]
WantedBy=multi-user.target
`
