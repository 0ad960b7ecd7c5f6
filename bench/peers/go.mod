module github.com/egressd/egressd/bench/peers

go 1.26.0

tool github.com/stripe/smokescreen

require github.com/elazarl/goproxy v1.9.2

require (
	github.com/DataDog/datadog-go v0.0.0-20170427165718-0ddda6bee211 // indirect
	github.com/armon/go-proxyproto v0.0.0-20170620220930-48572f11356f // indirect
	github.com/rs/xid v1.2.1 // indirect
	github.com/sirupsen/logrus v1.0.6 // indirect
	github.com/stripe/go-einhorn v0.0.0-20160225014757-79db5cd84b4b // indirect
	github.com/stripe/goproxy v0.0.0-20200902225839-ac962cdd7165 // indirect
	github.com/stripe/smokescreen v0.0.2 // indirect
	golang.org/x/crypto v0.48.0 // indirect
	golang.org/x/net v0.50.0 // indirect
	golang.org/x/sys v0.41.0 // indirect
	golang.org/x/term v0.40.0 // indirect
	golang.org/x/text v0.34.0 // indirect
	gopkg.in/urfave/cli.v1 v1.20.0 // indirect
	gopkg.in/yaml.v2 v2.2.4 // indirect
)
