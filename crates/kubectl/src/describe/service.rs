//! Services, with their endpoint slices.

use serde_json::Value;

use super::{Writer, or_none, plain, strings, write_meta};
use crate::context::Context;
use crate::failure::Result;
use crate::objects::text;
use crate::request::Request;
use crate::resources::all_items;

pub(super) async fn describe(cx: &Context, service: &Value, w: &mut Writer) -> Result<()> {
    let (name, namespace) = (text(service, "/metadata/name"), text(service, "/metadata/namespace"));
    let slices = slices(cx, namespace, name).await.unwrap_or_default();
    write(service, &slices, w);
    Ok(())
}

pub(super) async fn slices(cx: &Context, namespace: &str, name: &str) -> Result<Vec<Value>> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let selector = format!("{}={name}", api::endpoint::SERVICE_LABEL);
    all_items(cx, || Request::get(path.clone()).query("labelSelector", selector.clone())).await
}

fn write(service: &Value, slices: &[Value], w: &mut Writer) {
    let spec = &service["spec"];
    write_meta(w, service);
    let selector = crate::selector::from_map(&spec["selector"]);
    w.line(0, format!("Selector:\t{}", or_none(&selector)));
    w.line(0, format!("Type:\t{}", text(spec, "/type")));
    if !text(spec, "/ipFamilyPolicy").is_empty() {
        w.line(0, format!("IP Family Policy:\t{}", text(spec, "/ipFamilyPolicy")));
    }
    w.line(0, format!("IP Families:\t{}", or_none(&strings(&spec["ipFamilies"]).join(","))));
    w.line(0, format!("IP:\t{}", text(spec, "/clusterIP")));
    w.line(0, format!("IPs:\t{}", or_none(&strings(&spec["clusterIPs"]).join(","))));
    if !strings(&spec["externalIPs"]).is_empty() {
        w.line(0, format!("External IPs:\t{}", strings(&spec["externalIPs"]).join(",")));
    }
    for (title, key) in [("Desired LoadBalancer IP", "/loadBalancerIP"), ("External Name", "/externalName")] {
        if !text(spec, key).is_empty() {
            w.line(0, format!("{title}:\t{}", text(spec, key)));
        }
    }
    let ingress: Vec<String> = service["status"]["loadBalancer"]["ingress"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|i| match text(i, "/ip") {
            "" => text(i, "/hostname").to_owned(),
            ip if text(i, "/ipMode").is_empty() => ip.to_owned(),
            ip => format!("{ip} ({})", text(i, "/ipMode")),
        })
        .collect();
    if !ingress.is_empty() {
        w.line(0, format!("LoadBalancer Ingress:\t{}", ingress.join(", ")));
    }
    for p in spec["ports"].as_array().into_iter().flatten() {
        let name = text(p, "/name");
        let shown = if name.is_empty() { "<unset>" } else { name };
        let protocol = text(p, "/protocol");
        w.line(0, format!("Port:\t{shown}\t{}/{protocol}", plain(&p["port"])));
        w.line(0, format!("TargetPort:\t{}/{protocol}", plain(&p["targetPort"])));
        if !text(p, "/appProtocol").is_empty() {
            w.line(0, format!("AppProtocol:\t{}", text(p, "/appProtocol")));
        }
        if let Some(port) = p["nodePort"].as_i64().filter(|n| *n != 0) {
            w.line(0, format!("NodePort:\t{shown}\t{port}/{protocol}"));
        }
        w.line(0, format!("Endpoints:\t{}", endpoints(slices, name)));
    }
    w.line(0, format!("Session Affinity:\t{}", text(spec, "/sessionAffinity")));
    for (title, key) in
        [("External Traffic Policy", "/externalTrafficPolicy"), ("Internal Traffic Policy", "/internalTrafficPolicy")]
    {
        if !text(spec, key).is_empty() {
            w.line(0, format!("{title}:\t{}", text(spec, key)));
        }
    }
    if let Some(port) = spec["healthCheckNodePort"].as_i64().filter(|n| *n != 0) {
        w.line(0, format!("HealthCheck NodePort:\t{port}"));
    }
    if !strings(&spec["loadBalancerSourceRanges"]).is_empty() {
        w.line(0, format!("LoadBalancer Source Ranges:\t{}", strings(&spec["loadBalancerSourceRanges"]).join(",")));
    }
    if !text(spec, "/trafficDistribution").is_empty() {
        w.line(0, format!("Traffic Distribution:\t{}", text(spec, "/trafficDistribution")));
    }
}

/// The first three ready addresses, and how many more there are.
pub(super) fn endpoints(slices: &[Value], port_name: &str) -> String {
    if slices.is_empty() {
        return "<none>".to_owned();
    }
    let mut shown = Vec::new();
    let mut more = 0;
    for slice in slices {
        let ports: Vec<&Value> = slice["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|p| p["name"].as_str().unwrap_or("") == port_name)
            .collect();
        for port in ports {
            for e in slice["endpoints"].as_array().into_iter().flatten() {
                if e["conditions"]["ready"] == false {
                    continue;
                }
                for address in strings(&e["addresses"]) {
                    if shown.len() == 3 {
                        more += 1;
                        continue;
                    }
                    let address = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
                    shown.push(match port["port"].as_i64() {
                        Some(p) => format!("{address}:{p}"),
                        None => address,
                    });
                }
            }
        }
    }
    let text = shown.join(",");
    if more > 0 { format!("{text} + {more} more...") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn service_golden() {
        let service = json!({"metadata": {"name": "web", "namespace": "d"}, "spec": {"selector": {"app": "web"}, "type": "ClusterIP",
            "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}], "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}});
        let slices = [json!({"ports": [{"port": 8080, "name": ""}], "endpoints": [
            {"addresses": ["10.42.0.1"]}, {"addresses": ["10.42.0.2"]}, {"addresses": ["10.42.0.3"]}, {"addresses": ["10.42.0.4"]},
            {"addresses": ["10.42.0.5"], "conditions": {"ready": false}}]})];
        let mut w = Writer::default();
        write(&service, &slices, &mut w);
        expect![[r#"
            Name:                     web
            Namespace:                d
            Labels:                   <none>
            Annotations:              <none>
            Selector:                 app=web
            Type:                     ClusterIP
            IP Family Policy:         SingleStack
            IP Families:              IPv4
            IP:                       10.43.0.9
            IPs:                      10.43.0.9
            Port:                     <unset>  80/TCP
            TargetPort:               8080/TCP
            Endpoints:                10.42.0.1:8080,10.42.0.2:8080,10.42.0.3:8080 + 1 more...
            Session Affinity:         None
            Internal Traffic Policy:  Cluster
        "#]]
        .assert_eq(&w.finish());
    }
}
