package boundary

import "strings"

// Table returns every row, in the order of the reference page.
func Table() (all []Setting) {
	for _, part := range tables() {
		for _, r := range part {
			for field := range strings.FieldsSeq(r.fields) {
				all = append(all, Setting{Field: r.under + field, Ruling: r.ruling, Why: r.why, Names: r.names, free: r.free, judge: r.judge})
			}
		}
	}
	return all
}

// tables are the parts of the table, in the order of the reference page.
func tables() [][]rows {
	return [][]rows{network(), privileges(), files(), resources(), program(), account()}
}

// rows are fields for which the same is true.
type rows struct {
	under  string // what comes before each field
	fields string
	ruling Ruling
	why    string
	names  string
	free   bool
	judge  func(*judge, any)
}

const (
	host     = "HostConfig."
	config   = "Config."
	endpoint = "NetworkSettings.Networks."
)

// account is what the engine tells of a container, and nobody sets.
func account() []rows {
	return []rows{
		{fields: `Id Created Path Args Name RestartCount Driver Platform MountLabel ProcessLabel AppArmorProfile ExecIDs ResolvConfPath HostnamePath HostsPath
		LogPath SizeRw SizeRootFs GraphDriver.Data GraphDriver.Name Storage.RootFS.Snapshot.Name`, ruling: Harmless, why: "The engine's account of the container; HostConfig says what was asked for."},
		{under: "State.", fields: `Status Running Paused Restarting OOMKilled Dead Pid ExitCode Error StartedAt FinishedAt Health.Status Health.FailingStreak
		Health.Log.Start Health.Log.End Health.Log.ExitCode Health.Log.Output`, ruling: Harmless, why: "The engine's account of the process."},
		{under: "ImageManifestDescriptor.", fields: `mediaType digest size urls annotations data platform.architecture platform.os platform.os.version platform.os.features
		platform.variant artifactType`, ruling: Harmless, why: "The engine's account of the image."},
		{fields: "Image", ruling: Judged, why: "Only egressd's own container runs egressd's image.", names: "image", judge: (*judge).image},
	}
}

func network() []rows {
	return []rows{
		{under: host, fields: "NetworkMode", ruling: Judged, why: "The container has no network, or one that leads to egressd alone.", names: "--network network_mode", judge: (*judge).networkMode},
		{fields: strings.TrimSuffix(endpoint, "."), ruling: Judged, why: "Each network leads to egressd alone.", names: "--network networks", free: true, judge: (*judge).networks},
		{under: endpoint, fields: "Links", ruling: Harmless, why: "Names of containers in a network that leads to egressd alone.", names: "--link links"},
		{under: endpoint, fields: "DriverOpts", ruling: Refused, why: "Options of a driver may change how packets are routed.", names: "--network networks.driver_opts"},
		{under: endpoint, fields: `IPAMConfig.IPv4Address IPAMConfig.IPv6Address IPAMConfig.LinkLocalIPs Aliases GwPriority NetworkID EndpointID Gateway IPAddress MacAddress
		IPPrefixLen IPv6Gateway GlobalIPv6Address GlobalIPv6PrefixLen DNSNames`, ruling: Harmless, why: "Addresses and names within a network that leads to egressd alone.", names: "--ip --ip6 --network-alias"},
		{under: "NetworkSettings.", fields: `SandboxID SandboxKey Ports Ports.HostIp Ports.HostPort Bridge HairpinMode LinkLocalIPv6Address LinkLocalIPv6PrefixLen SecondaryIPAddresses
		SecondaryIPv6Addresses EndpointID Gateway GlobalIPv6Address GlobalIPv6PrefixLen IPAddress IPPrefixLen IPv6Gateway MacAddress`, ruling: Harmless, why: "The engine's account of the networks."},
		{under: host, fields: "Links", ruling: Refused, why: "A link leads to a container that egressd does not know.", names: "--link links external_links"},
		{under: host, fields: "PortBindings PortBindings.HostIp PortBindings.HostPort", ruling: Harmless, why: "No port of a network that leads nowhere is published.", names: "--publish ports appPort", free: true},
		{under: host, fields: "PublishAllPorts", ruling: Harmless, why: "No port of a network that leads nowhere is published.", names: "--publish-all"},
		{under: host, fields: "Dns DnsOptions DnsSearch ExtraHosts", ruling: Harmless, why: "Names that it finds in another way lead nowhere without a network.", names: "--dns dns"},
		{under: host, fields: "Sysctls", ruling: Judged, why: "Settings of the kernel are those of shared memory, queues, ports and keep-alive.", names: "--sysctl sysctls", judge: (*judge).sysctls},
	}
}

func privileges() []rows {
	return []rows{
		{under: host, fields: "Privileged", ruling: Refused, why: "It is no boundary: the container becomes root of the host.", names: "--privileged privileged"},
		{under: host, fields: "CapAdd", ruling: Judged, why: "A capability is one of those that lead nowhere.", names: "--cap-add cap_add capAdd", judge: (*judge).capAdd},
		{under: host, fields: "CapDrop", ruling: Judged, why: "In a network that others share, NET_RAW is dropped.", names: "--cap-drop cap_drop"},
		{under: host, fields: "Capabilities", ruling: Refused, why: "It replaces the engine's own set of capabilities.", names: ""},
		{under: host, fields: "SecurityOpt", ruling: Judged, why: "The engine's own filters stay as they are.", names: "--security-opt security_opt securityOpt", judge: (*judge).securityOpt},
		{under: host, fields: "MaskedPaths ReadonlyPaths", ruling: Judged, why: "Parts of /proc and /sys stay masked.", names: "--security-opt", judge: (*judge).systemPaths},
		{under: host, fields: "PidMode", ruling: Judged, why: "Processes are the container's own.", names: "--pid pid", judge: own("", "private")},
		{under: host, fields: "IpcMode", ruling: Judged, why: "Shared memory is the container's own.", names: "--ipc ipc", judge: own("", "none", "private", "shareable")},
		{under: host, fields: "UTSMode", ruling: Judged, why: "The host name is the container's own.", names: "--uts uts", judge: mode("", "private")},
		{under: host, fields: "UsernsMode", ruling: Judged, why: "The engine's own mapping of users holds.", names: "--userns userns_mode", judge: mode("")},
		{under: host, fields: "CgroupnsMode", ruling: Judged, why: "Control groups are the container's own.", names: "--cgroupns cgroup", judge: (*judge).cgroupns},
		{under: host, fields: "Runtime", ruling: Judged, why: "egressd does not know what another runtime holds.", names: "--runtime runtime", judge: mode("", "runc", "crun", "io.containerd.runc.v2", "oci")},
		{under: host, fields: "Isolation", ruling: Judged, why: "egressd does not know what another isolation holds.", names: "--isolation isolation", judge: mode("", "default")},
		{under: host, fields: "CgroupParent", ruling: Refused, why: "By its control group egressd knows which container it is.", names: "--cgroup-parent cgroup_parent"},
		{under: host, fields: "Cgroup", ruling: Refused, why: "It shares the control groups of another container.", names: ""},
		{under: host, fields: "Annotations", ruling: Refused, why: "Runtimes take orders from annotations.", names: "--annotation annotations"},
		{under: host, fields: "Devices Devices.PathOnHost Devices.PathInContainer Devices.CgroupPermissions", ruling: Refused, why: "Devices lead out of a container.", names: "--device devices"},
		{under: host, fields: "DeviceCgroupRules", ruling: Refused, why: "Devices lead out of a container.", names: "--device-cgroup-rule device_cgroup_rules"},
		{under: host, fields: `DeviceRequests DeviceRequests.Driver DeviceRequests.Count DeviceRequests.DeviceIDs DeviceRequests.Capabilities
		DeviceRequests.Options`, ruling: Refused, why: "Devices lead out of a container.", names: "--gpus gpus deploy.resources.reservations.devices"},
		{under: host, fields: "GroupAdd", ruling: Harmless, why: "A group opens no file that is not mounted.", names: "--group-add group_add"},
	}
}

func resources() []rows {
	return []rows{
		{under: host, fields: `CpuShares Memory NanoCpus BlkioWeight BlkioWeightDevice.Path BlkioWeightDevice.Weight BlkioDeviceReadBps.Path BlkioDeviceReadBps.Rate
		BlkioDeviceWriteBps.Path BlkioDeviceWriteBps.Rate BlkioDeviceReadIOps.Path BlkioDeviceReadIOps.Rate BlkioDeviceWriteIOps.Path BlkioDeviceWriteIOps.Rate
		CpuPeriod CpuQuota CpuRealtimePeriod CpuRealtimeRuntime CpusetCpus CpusetMems MemoryReservation MemorySwap MemorySwappiness KernelMemory KernelMemoryTCP
		OomKillDisable OomScoreAdj PidsLimit Ulimits.Name Ulimits.Hard Ulimits.Soft CpuCount CpuPercent IOMaximumIOps IOMaximumBandwidth ShmSize Umask`, ruling: Harmless, why: "Limits of what it uses."},
		{under: host, fields: "ContainerIDFile ConsoleSize AutoRemove RestartPolicy.Name RestartPolicy.MaximumRetryCount Init", ruling: Harmless, why: "How the engine starts and ends it."},
		{under: host, fields: "LogConfig.Type", ruling: Judged, why: "A log stays on this machine: another driver sends what is printed on, past every network of the container.", names: "--log-driver logging.driver", judge: mode("", "json-file", "local", "none", "journald")},
		{under: host, fields: "LogConfig.Config", ruling: Judged, why: "Options are those of logs that stay on this machine: the engine's own driver may be another one.", names: "--log-opt logging.options", judge: (*judge).logOptions},
	}
}

func files() []rows {
	return []rows{
		{fields: "Mounts", ruling: Judged, why: "A mount leads to nothing of egressd's, to no socket or device, lies in no other one that the container can write, and lets nobody change what the host executes.", names: "--volume volumes mounts", judge: (*judge).mounts},
		{under: "Mounts.", fields: "Type Name Source Destination Driver Mode RW Propagation", ruling: Harmless, why: "Parts of a mount, which is judged as a whole."},
		{under: host, fields: "Binds Mounts.Source Mounts.Target Mounts.ReadOnly Mounts.Consistency Mounts.Type Tmpfs StorageOpt", ruling: Harmless, why: "Judged as Mounts, or files of the container's own.", names: "--volume volumes mounts"},
		{under: host, fields: `Mounts.BindOptions.NonRecursive Mounts.BindOptions.CreateMountpoint Mounts.BindOptions.ReadOnlyNonRecursive
		Mounts.BindOptions.ReadOnlyForceRecursive Mounts.VolumeOptions.NoCopy Mounts.VolumeOptions.Labels Mounts.VolumeOptions.Subpath
		Mounts.ImageOptions.Subpath Mounts.TmpfsOptions.SizeBytes Mounts.TmpfsOptions.Mode Mounts.TmpfsOptions.Options`, ruling: Harmless, why: "How a mount is made that is judged as Mounts."},
		{under: host, fields: "Mounts.BindOptions.Propagation", ruling: Judged, why: "What is mounted inside does not appear on the host.", names: "--mount volumes", judge: mode("", "private", "rprivate", "slave", "rslave")},
		{under: host, fields: "Mounts.VolumeOptions.DriverConfig.Name", ruling: Judged, why: "Another driver may keep the volume on another machine.", names: "--mount volumes", judge: mode("", "local")},
		{under: host, fields: "Mounts.VolumeOptions.DriverConfig.Options", ruling: Judged, why: "Options make a folder of the host, or of another machine, of a volume.", names: "--mount volumes", judge: (*judge).volumeOptions},
		{under: host, fields: "VolumeDriver", ruling: Judged, why: "Another driver may keep the volume on another machine.", names: "--volume-driver volume_driver", judge: mode("", "local")},
		{under: host, fields: "Mounts.ClusterOptions", ruling: Refused, why: "The volume is of other machines.", names: "--mount volumes"},
		{under: host, fields: "VolumesFrom", ruling: Judged, why: "What it brings in is judged as Mounts, where the engine lists that.", names: "--volumes-from volumes_from", judge: (*judge).volumesFrom},
		{under: host, fields: "ReadonlyRootfs", ruling: Harmless, why: "It takes away, and gives nothing.", names: "--read-only read_only"},
	}
}

func program() []rows {
	return []rows{
		{under: config, fields: `Hostname Domainname User AttachStdin AttachStdout AttachStderr Tty OpenStdin StdinOnce Env Cmd ArgsEscaped WorkingDir Entrypoint
		NetworkDisabled OnBuild StopSignal StopTimeout Shell MacAddress Volumes ExposedPorts Healthcheck.Test Healthcheck.Interval Healthcheck.Timeout
		Healthcheck.StartPeriod Healthcheck.StartInterval Healthcheck.Retries`, ruling: Harmless, why: "The program in the container, which may be hostile anyway."},
		{under: config, fields: "Image", ruling: Judged, why: "Only egressd's own container runs egressd's image.", names: "image image", judge: (*judge).image},
		{under: config, fields: "Labels", ruling: Judged, why: "By labels egressd's scripts find egressd's container.", names: "--label labels", judge: (*judge).labels},
	}
}
